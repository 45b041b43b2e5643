"""Prints the table of docs/gate.md: how often intervals and tests are wrong, by simulation.

Usage: python tools/coverage_table.py [experiments]
"""

from __future__ import annotations

import sys

import numpy as np
from replan.results import inference, noninferiority


def non_inferiority(
    random: np.random.Generator, times: int, n: int, margin: float, gained: float
) -> tuple[float, float]:
    """Shares of experiments with a loss of exactly the margin that the exact test and the normal one pass."""
    outcomes, counts = np.unique(
        random.multinomial(n, [gained + margin, gained, 1 - margin - 2 * gained], times), axis=0, return_counts=True
    )
    exact = normal = 0
    for (a, b, _), count in zip(outcomes, counts, strict=True):
        exact += count * (noninferiority.p_value(int(a), int(b), n, margin) <= noninferiority.ALPHA)
        normal += count * (float(noninferiority.score(a, b, n, -margin)) >= 1.6448536)
    return exact / times, normal / times


def main(times: int) -> None:
    """Prints the table as Markdown."""
    random = np.random.default_rng(1)
    print("| cells | margin | true gains | exact test passes | normal approximation passes |\n|---|---|---|---|---|")
    for n, margin, gained in ((40, 0.1, 0.0), (88, 0.03, 0.0), (100, 0.03, 0.02), (100, 0.1, 0.05), (500, 0.02, 0.02)):
        exact, normal = non_inferiority(random, times, n, margin, gained)
        print(f"| {n} | {100 * margin:g} | {100 * gained:g} % | {100 * exact:.1f} % | {100 * normal:.1f} % |")
    print("\n| interval | true value | covers it |\n|---|---|---|")
    for n, rate in ((50, 0.95), (475, 0.98)):
        bounds = [inference.clopper_pearson(int(k), n).low for k in random.binomial(n, rate, times)]
        print(f"| retention, one-sided 95 %, {n} solved | {rate:g} | {100 * np.mean(np.array(bounds) <= rate):.1f} % |")
    for count in (5, 10, 30):
        tasks, covered, few = np.repeat(np.arange(count), 20), 0, times // 4
        for _ in range(few):
            found = inference.clustered(
                random.random(20 * count) < random.beta(6, 4, count)[tasks], list(map(str, tasks))
            )
            covered += found.low <= 0.6 <= found.high
        print(f"| success by task, 95 %, {count} tasks of 20 cells | 0.6 | {100 * covered / few:.1f} % |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
