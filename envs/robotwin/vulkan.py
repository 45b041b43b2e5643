"""A Vulkan driver that SAPIEN can render with: the system's own, or a software driver unpacked next to it.

SAPIEN asks for ``descriptorBindingPartiallyBound`` and ``timelineSemaphore``. The software driver of Debian 12 (Mesa
22.3) reports the first as missing; Mesa 25 has both and is in the same distribution's backports. Installing it from
there would replace the OpenGL that MuJoCo renders with, so its one library is unpacked into our cache folder, and the
Vulkan loader is pointed at it by an environment variable. Nothing of the system changes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ...files import write_file
from ..errors import SuiteUnavailable
from .standin.build import MEND as FIX

LOADER_VARIABLE = "VK_ICD_FILENAMES"  # read by the Vulkan loader when SAPIEN creates its first renderer
LIBRARIES = "apt-get install -y --no-install-recommends mesa-vulkan-drivers libvulkan1"
_RELEASE = "bookworm"  # the one release whose own driver is too old and whose backports have a newer one
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_DEVICE = """
import sapien
scene = sapien.Scene()
"""
_IMAGE = (
    _DEVICE
    + """
camera = scene.add_camera("probe", 16, 16, 1.0, 0.1, 10.0)
scene.update_render()
camera.take_picture()
assert camera.get_picture("Color").shape == (16, 16, 4)
"""
)


def driver(cache: Path) -> Path:
    """Returns the description file of the unpacked driver, whether it is there or not."""
    return cache / "vulkan" / "lavapipe.json"


def activate(cache: Path) -> None:
    """Points the Vulkan loader at the unpacked driver if there is one and the user named none.

    Has to be called before SAPIEN creates its first renderer in this process.
    """
    if driver(cache).is_file():
        os.environ.setdefault(LOADER_VARIABLE, str(driver(cache)))


def probe(icd: Path | None = None, render: bool = False) -> str | None:
    """Looks for a device in a process of its own, because a driver that fails may take the process with it.

    Args:
        icd: Driver to try; None leaves the choice to the environment and the system.
        render: Also render an image. The software driver takes some seven seconds of a processor for its first one.

    Returns:
        None if it went well, else what went wrong.
    """
    environment = {**os.environ, **({LOADER_VARIABLE: str(icd)} if icd else {})}
    command = [sys.executable, "-c", _IMAGE if render else _DEVICE]
    try:  # a driver may hang; on a busy machine it takes minutes
        run = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", timeout=1200)
    except subprocess.TimeoutExpired:
        return "no answer within twenty minutes"
    if run.returncode == 0:
        return None
    return (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1]


def fix() -> str:
    """Returns what to do where no device is found: a driver that the user names goes before ours."""
    named = os.environ.get(LOADER_VARIABLE, "")
    if gone := [name for name in named.split(os.pathsep) if name and not Path(name).is_file()]:
        return f"{LOADER_VARIABLE} names {gone[0]}, which is not there; unset it"
    return FIX


def setup(cache: Path) -> str:
    """Makes sure that SAPIEN can render: unpacks the software driver where, and only where, nothing else works.

    Returns:
        What was found or done, in one line.

    Raises:
        SuiteUnavailable: No driver renders, and the driver cannot be unpacked here.
    """
    if driver(cache).is_file() and probe(driver(cache)) is None:
        return f"Vulkan: the unpacked software driver is installed ({driver(cache)})"
    system = probe(render=True)
    if system is None:
        return "Vulkan: the system's own driver renders; nothing was unpacked"
    _unpack(cache)
    failure = probe(driver(cache), render=True)
    if failure is None:
        return f"Vulkan: unpacked a software driver to {driver(cache)}; the system's own is unchanged"
    driver(cache).unlink()
    raise SuiteUnavailable(
        f"the unpacked Vulkan driver does not render ({failure}); run `{LIBRARIES}` as root, then {FIX}"
    )


def _unpack(cache: Path) -> None:
    if _codename() != _RELEASE or shutil.which("apt-get") is None:
        raise SuiteUnavailable(
            "SAPIEN finds no Vulkan device. Install a driver (a GPU's own, or Mesa's lavapipe of version 23 or newer: "
            f"`{LIBRARIES}` as root on Debian 13 and Ubuntu 24.04), or name one in {LOADER_VARIABLE}"
        )
    folder = driver(cache).parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="vulkan-") as scratch:
        root = _download(Path(scratch))
        library = next(iter(root.rglob("libvulkan_lvp.so")), None)
        if library is None:
            raise SuiteUnavailable(
                "the distribution's mesa-vulkan-drivers has no libvulkan_lvp.so; name a driver in " + LOADER_VARIABLE
            )
        missing = [line.split()[0] for line in _run(["ldd", str(library)]).splitlines() if "not found" in line]
        if missing:
            raise SuiteUnavailable(f"the software Vulkan driver lacks {', '.join(missing)}; run `{LIBRARIES}` as root")
        folder.mkdir(exist_ok=True)
        shutil.copy2(library, folder / library.name)
    icd = {"api_version": "1.4.305", "library_path": str(folder / library.name)}
    write_file(driver(cache), json.dumps({"file_format_version": "1.0.0", "ICD": icd}))


def _download(scratch: Path) -> Path:
    """Fetches the driver's package from the machine's own mirror, and returns where it lies unpacked."""
    for folder in ("lists/partial", "cache/archives/partial"):
        (scratch / folder).mkdir(parents=True)
    sources = scratch / "sources.list"
    sources.write_text(f"deb [signed-by={_KEYRING}] {_mirror()} {_RELEASE}-backports main\n", encoding="utf-8")
    options = [
        f"-oDir::Etc::sourcelist={sources}",
        "-oDir::Etc::sourceparts=-",
        f"-oDir::State::lists={scratch / 'lists'}",
        f"-oDir::Cache={scratch / 'cache'}",
        f"-oAPT::Sandbox::User={'root' if os.geteuid() == 0 else ''}",
    ]
    _run(["apt-get", *options, "-qq", "update"], scratch)
    _run(["apt-get", *options, "-qq", "download", "mesa-vulkan-drivers"], scratch)
    _run(["dpkg", "-x", str(next(scratch.glob("mesa-vulkan-drivers_*.deb"))), str(scratch / "root")], scratch)
    return scratch / "root"


def _mirror() -> str:
    """Returns the archive that this machine's apt is configured with for the release itself."""
    targets = _run(["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages"])
    for line in targets.splitlines():
        codename, _, address = line.partition(" ")
        if codename == _RELEASE:
            return address
    raise SuiteUnavailable(f"apt knows no archive of {_RELEASE}; run `apt-get update` as root, then {FIX}")


def _codename() -> str:
    try:
        lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition("=")[2].strip('"') for line in lines if line.startswith("VERSION_CODENAME=")), "")


def _run(command: list[str], folder: Path | None = None) -> str:
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    if run.returncode:
        last = (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1]
        raise SuiteUnavailable(f"`{' '.join(command[:1] + command[-2:])}` failed: {last}; {FIX} again")
    return run.stdout
