"""The gate's result as text, as Markdown for a pull request, and as JUnit XML for a build server."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from .escaping import in_markdown, visible
from .gate import Outcome, Result


def text(result: Result) -> str:
    """Lines for a terminal: the outcome last."""
    lines = []
    for subject in dict.fromkeys(check.subject for check in result.checks):
        lines.append(visible(subject))
        lines += [
            f"  {each.outcome.value:<14}  {each.name}: {visible(each.text)}"
            for each in result.checks
            if each.subject == subject
        ]
    return "\n".join([*lines, f"registered: {result.registration}", result.outcome.value])


def markdown(result: Result) -> str:
    """A heading and a table, as a comment under a pull request shows them."""
    lines = [
        f"### replan gate: {result.outcome.value}",
        "",
        "| method | check | outcome | found |",
        "|---|---|---|---|",
    ]
    for each in result.checks:
        cells = (each.subject, each.name, each.outcome.value, each.text)
        lines.append("| " + " | ".join(in_markdown(visible(cell)) for cell in cells) + " |")
    return "\n".join([*lines, "", f"Registered: `{result.registration}`", ""])


def junit(result: Result) -> str:
    """JUnit XML: a failed check is a failure, one without an answer an error, so that neither counts as passed."""
    suite = Element("testsuite", name="replan gate", tests=str(len(result.checks)))
    for each in result.checks:
        case = SubElement(suite, "testcase", classname=visible(each.subject), name=each.name)
        if each.outcome is not Outcome.PASS:
            kind = "failure" if each.outcome is Outcome.FAIL else "error"
            SubElement(case, kind, type=each.outcome.value, message=visible(each.text))
    for kind in ("failure", "error"):
        suite.set(f"{kind}s", str(len(suite.findall(f"testcase/{kind}"))))
    indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(suite, encoding="unicode") + "\n"
