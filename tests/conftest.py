"""What all Python tests share: the length of long tests, and no skips in CI."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

CI = os.environ.get("CI") == "true"
ALLOWED = "optional:"  # how the reason of a skip begins that CI lets pass

# A child process that is started in the checkout must not take its sources for the
# package.
os.environ.setdefault("PYTHONSAFEPATH", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long-seconds",
        type=float,
        default=20.0,
        help="how long each soak or stress test runs (default: 20)",
    )


@pytest.fixture
def long_seconds(request: pytest.FixtureRequest) -> float:
    """Seconds that a test marked `long` runs for."""
    return float(request.config.getoption("--long-seconds"))


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Long tests get their seconds on top of the usual time limit."""
    limit = 120 + float(config.getoption("--long-seconds"))
    for item in items:
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(limit))


def refuse_skip(report: Any) -> None:
    """Turns a report of a skip into one of a failure, in CI, unless its reason allows
    it."""
    if not CI or not report.skipped or hasattr(report, "wasxfail"):
        return
    text = report.longrepr
    reason = text[2] if isinstance(text, tuple) else str(text)
    if reason.removeprefix("Skipped: ").startswith(ALLOWED):
        return
    report.outcome = "failed"
    report.longrepr = f"skipped, which CI does not allow: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    report = yield
    refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    report = yield
    refuse_skip(report)
    return report
