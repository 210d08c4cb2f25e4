"""The command `ddstore`: run a program as many processes, look at this machine,
measure.

Everything that takes long to import is imported by the command that needs it.
"""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Any, NoReturn

import click

PASS_THROUGH = {"ignore_unknown_options": True, "allow_interspersed_args": False}
HELP = {"help_option_names": ["-h", "--help"]}


def show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Prints the version and leaves."""
    if value and not ctx.resilient_parsing:
        click.echo(f"ddstore {importlib.metadata.version('pyddstore')}")
        ctx.exit()


@click.group(context_settings=HELP)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Print the version and exit.",
)
def cli() -> None:
    """Rows of a dataset in the memory of many processes, read by any of them."""


@cli.command(context_settings=PASS_THROUGH)
@click.option(
    "-n",
    "size",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="Number of processes.",
)
@click.option(
    "--no-prefix", is_flag=True, help="Leave output as it is, without `[rank] `."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(size: int, no_prefix: bool, command: tuple[str, ...]) -> None:
    """Run a program as N processes on this machine.

    Each process finds DDSTORE_RANK, DDSTORE_SIZE, a fresh DDSTORE_RUN_ID and, unless
    you have set it, a private DDSTORE_HANDSHAKE_DIR in its environment, which is what
    PyDDStore.from_env() and FileComm.from_env() read. A program that ends in .py is run
    by the Python of this command. Rank 0 gets standard input unless that is a terminal.

    When one process fails, the others get SIGTERM, and SIGKILL 5 seconds later; the
    exit code is that of the first that failed, 128 + N if signal N killed it. SIGINT,
    SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to all; a second Ctrl-C kills.
    """
    from pyddstore import launch

    try:
        code = launch.launch(command, size, prefix=not no_prefix)
    except launch.ProgramError as error:
        fail(f"ddstore run: {error}", error.code)
    except OSError as error:
        fail(f"ddstore run: can't start {size} processes: {error}", 1)
    sys.exit(code)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def info(as_json: bool) -> None:
    """Show what the library finds here: versions, networks, limits, settings.

    Says of every libfabric provider and network interface whether it would be taken,
    and why or why not, and of every setting its value and where that comes from.
    """
    from pyddstore import report

    facts = report.collect()
    if as_json:
        click.echo(report.as_json(facts))
    else:
        report.show_info(facts)


@cli.command("nic-map")
@click.option(
    "--env", "as_env", is_flag=True, help="Print the value for DDSTORE_NIC_MAP instead."
)
@click.option(
    "--allocated",
    is_flag=True,
    help="Only the CPUs that this process may use, and the interface it would take.",
)
@click.option(
    "-p",
    "pattern",
    metavar="PATTERN",
    help="Names of network interfaces, e.g. 'hsn*,mlx?'; [default: hsn*,ib*,en*,eth*]",
)
@click.argument("cpu", required=False, type=click.IntRange(min=0))
def nic_map(
    as_env: bool, allocated: bool, pattern: str | None, cpu: int | None
) -> None:
    """Show for each CPU of this machine the nearest network interface, or for one CPU
    its name alone.

    `exact`: the interface is at the CPU's NUMA node (or a larger part of the machine
    that holds it); `package`: at its package; `distance`: at another, the nearest one;
    `anywhere`: the machine doesn't tell where it is. CPUs with several that are equally
    near are spread over them. Only interfaces that are PCI devices are looked at.

    DDSTORE_NIC_MAP="$(ddstore nic-map --env)" makes processes use the interface of
    their CPUs.
    """
    if as_env + allocated + (cpu is not None) > 1:
        raise click.UsageError("give one of --env, --allocated and a CPU")
    from pyddstore import nic_map as maps

    try:
        if as_env:
            click.echo(maps.discover(pattern))
        elif cpu is not None:
            click.echo(maps.nic_of(maps.discover(pattern), cpu))
        elif allocated:
            maps.show_allocated(maps.discover(pattern))
        else:
            maps.show(maps.discover(pattern))
    except (LookupError, OSError, RuntimeError) as error:
        fail(f"ddstore nic-map: {error.args[0]}", 1)


@cli.command()
@click.option(
    "--plot",
    "plot_file",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE.png",
    help="Draw the ratios to this file (needs matplotlib).",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, writable=True, allow_dash=True),
    metavar="FILE",
    help="Write the figures to this file as JSON (- for standard output).",
)
@click.option("--quick", is_flag=True, help="Fewer repetitions; rougher figures.")
@click.argument("parts", nargs=-1, metavar="[PART]...")
def bench(
    plot_file: str | None, json_file: str | None, quick: bool, parts: tuple[str, ...]
) -> None:
    """Measure reads against references in the same run, all PARTs unless some are
    named.

    Exits with 1 if a budget is missed, with 0 otherwise.
    """
    from pyddstore import bench_report

    if plot_file is not None and not bench_report.can_plot():
        fail("ddstore bench: --plot needs matplotlib: pip install 'pyddstore[plot]'", 2)
    try:
        from pyddstore import benchmarks
    except ImportError as error:
        fail(f"ddstore bench: the benchmarks are not installed: {error}", 1)
    try:
        results: list[dict[str, Any]] = benchmarks.run(list(parts), quick)
    except ValueError as error:  # an unknown part
        fail(f"ddstore bench: {error}", 2)
    if json_file != "-":
        bench_report.show(results)
    if json_file is not None:
        with click.open_file(json_file, "w") as out:
            out.write(bench_report.as_json(results) + "\n")
    if plot_file is not None:
        bench_report.plot(results, plot_file)
        click.echo(f"drawn: {plot_file}", err=json_file == "-")
    sys.exit(0 if all(result["ok"] is not False for result in results) else 1)


def fail(message: str, code: int) -> NoReturn:
    """Says one sentence on standard error and leaves with an exit code."""
    click.echo(message, err=True)
    sys.exit(code)


def main() -> None:
    """The entry point of the script `ddstore`."""
    cli(prog_name="ddstore")


if __name__ == "__main__":
    main()
