"""What the SPANK plugin adds to the start of a step: `srun true` without it and with
it, in turn, on a cluster of two nodes that is made for it (as root, as by tests/slurm).

    python bench/srun_startup.py [--times N]

Prints both medians and their difference; fails if that is above 30 ms.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS / name) for name in ("slurm", "hosts", "python")]

from cluster import why_no_cluster  # noqa: E402
from spank_build import PLUGIN, built  # noqa: E402
from spank_cluster import SpankCluster  # noqa: E402

MOST_MS = 30.0


def once(cluster: SpankCluster, *lines: str) -> float:
    """Milliseconds of one step on both nodes."""
    cluster.use(*lines)
    begun = time.perf_counter()
    cluster.run("srun", "-N2", "true")
    took = (time.perf_counter() - begun) * 1e3
    cluster.wait(cluster.idle, 20, "the job's end")
    return took


def measure(times: int) -> tuple[list[float], list[float]]:
    """Milliseconds without the plugin, and with it."""
    cluster = SpankCluster(built() / PLUGIN)
    try:
        cluster.start()
        line = cluster.line("enable=always")
        once(cluster, line)  # the NIC map is found once a boot
        pairs = [(once(cluster), once(cluster, line)) for _ in range(times)]
    finally:
        cluster.close()
    return [off for off, _ in pairs], [on for _, on in pairs]


def main() -> None:
    """Runs from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--times", type=int, default=20)
    times = parser.parse_args().times
    if why := why_no_cluster():
        sys.exit(why)
    off, on = map(statistics.median, measure(times))
    print(
        f"srun -N2 true, median of {times}: {off:.1f} ms without the plugin, ", end=""
    )
    print(f"{on:.1f} ms with it, {on - off:+.1f} ms (at most {MOST_MS:.0f})")
    sys.exit(on - off > MOST_MS)


if __name__ == "__main__":
    main()
