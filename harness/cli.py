"""The command line: ``gate run check replay report mutants seeds clauses systems clients doctor``.

Exit codes: 0 all pass or as known; 1 a violation or a stale known failure; 2 wrong usage or environment; 3 the harness
failed; 4 nothing decided; 130 interrupted (what was judged so far is reported, histories so far are on disk).
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from harness import __version__
from harness.cli_guard import Guard, say
from harness.cli_json import Commands
from harness.usage_error import UsageError
from harness.verdict import EXIT_GREEN, EXIT_HARNESS, EXIT_INTERRUPTED, EXIT_USAGE, EXIT_VIOLATION

if TYPE_CHECKING:
    from harness.clauses.catalogue import Catalogue, Clause
    from harness.gate.result import GateResult
    from harness.known_failing import KnownFailure
    from harness.reference.mutants.run import MutantRow
    from harness.seeds.seed import Seed

app = typer.Typer(
    name="starquake",
    cls=Commands,
    help="Which promise did the broker or the client break, and what is the shortest reproduction?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
systems_app = typer.Typer(help="The systems under test.", no_args_is_help=True)
clients_app = typer.Typer(help="The clients under test.", no_args_is_help=True)
app.add_typer(systems_app, name="systems")
app.add_typer(clients_app, name="clients")
guard = Guard()

DEFAULT_SYSTEM = "lite"
DEFAULT_CLIENTS = ("reference", "python")
SYSTEMS = {
    "lite": "pulsar-lite, a native broker from a wheel (default)",
    "reference": "the executable specification, over sockets",
    "simulated": "the executable specification with the reference client, in one process under virtual time",
    "mutant:NAME": "the simulated pair with one part deliberately broken; `starquake mutants` names them",
    "pulsar@VERSION": "a real broker on 127.0.0.1, any release from 2.8.0 on; those below are pinned",
    "docker:IMAGE": "a standalone Pulsar in a container, as docker:apachepulsar/pulsar:4.0.7 (the extra docker)",
    "pulsar://HOST:PORT[,http://HOST:PORT]": "a broker that runs already; --client-conf has its token",
    "pulsar+ssl://HOST:PORT[,https://HOST:PORT]": "the same through TLS; --client-conf has the certificates",
}

MOST_TIMES = 10_000
"""How often one plan may be carried out."""

UNLIMITED = 10_000
"""Columns of a terminal that is wide enough for any table."""

FOLDED, GAP = 8, 2
"""Least columns of what may be folded, and those between two of them."""

Json = Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout.")]
ClientConf = Annotated[
    Path | None,
    typer.Option(
        "--client-conf",
        envvar="PULSAR_CLIENT_CONF",
        help="Pulsar's client.conf: token and certificates of your cluster.",
    ),
]
Known = Annotated[Path | None, typer.Option("--known", help="List of known failures [default: the shipped ones].")]
Report = Annotated[Path | None, typer.Option("--report", help="Directory for all files [default: reports/gate-TIME].")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"starquake {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback when the harness itself fails.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    guard.debug = debug


# --- gate -----------------------------------------------------------------------------------------------------------


@app.command()
@guard
def gate(
    system: Annotated[list[str] | None, typer.Option("--system", help="System under test (again for more).")] = None,
    client: Annotated[list[str] | None, typer.Option("--client", help="Client under test (again for more).")] = None,
    profile: Annotated[str, typer.Option("--profile", help="smoke, ci or nightly.")] = "smoke",
    select: Annotated[str, typer.Option("--select", help="Only the clauses this glob matches.")] = "*",
    known: Known = None,
    report: Report = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="A further copy of the JUnit file.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Base of all randomness (smoke draws nothing).")] = None,
    explore: Annotated[
        float | None, typer.Option("--explore", min=0, help="Seconds until drawn plans end [default: the profile's].")
    ] = None,
    client_conf: ClientConf = None,
    as_json: Json = False,
) -> int:
    """Judge systems through clients: red or green, with the shortest reproduction of what is new."""
    from harness.clauses.catalogue import load
    from harness.gate.explorer import MachineExploration
    from harness.gate.profile import PROFILES
    from harness.gate.run import Gate, Request
    from harness.report.files import prepare
    from harness.report.progress import Progress
    from harness.seeds.seed import stored
    from harness.systems.access import access_for
    from harness.worlds.resolve import world_for

    if profile not in PROFILES:
        raise UsageError(f"there is no profile {profile!r}; there are: {', '.join(PROFILES)}")
    catalogue = load()
    _check_selection(select, [clause.id for clause in catalogue])
    systems = list(dict.fromkeys(system or [DEFAULT_SYSTEM]))
    clients = list(dict.fromkeys(client or _default_clients(systems)))
    listed = _known_failures(known, [clause.id for clause in catalogue], systems, clients)
    directory = prepare(report or Path("reports") / f"gate-{datetime.now():%Y%m%d-%H%M%S}")
    if junit is not None:
        prepare(junit.parent)
        if junit.is_dir():
            raise UsageError(f"--junit {junit} is a directory; give the name of a file")
    request = Request(
        systems=systems,
        clients=clients,
        profile=PROFILES[profile] if explore is None else replace(PROFILES[profile], explore_seconds=explore),
        select=select,
        known=listed,
        report=directory,
        seed=_base_seed(seed, PROFILES[profile].seed),
    )
    with Progress(Console(stderr=True)) as progress:
        result = Gate(
            request,
            catalogue=catalogue,
            exploration=MachineExploration(),
            make_world=partial(world_for, access=access_for(systems, client_conf)),
            seeds=[entry for _, entry in stored(_seeds_directory())],
            watcher=progress,
        ).run()
    return _tell(result, directory, junit, as_json)


def _base_seed(asked: int | None, of_profile: int | None) -> int:
    """What the caller asked for, else what the profile always uses, else a new one."""
    if asked is not None:
        return asked
    return secrets.randbelow(2**31) if of_profile is None else of_profile


def _default_clients(systems: list[str]) -> list[str]:
    """The simulated world has its own client; everything else is tried with all that are installed."""
    simulated = all(name == "simulated" or name.startswith("mutant:") for name in systems)
    return ["reference"] if simulated else list(DEFAULT_CLIENTS)


def _check_selection(select: str, clauses: list[str]) -> None:
    from fnmatch import fnmatchcase

    if not any(fnmatchcase(clause, select) for clause in clauses):
        raise UsageError(f"no clause matches {select!r}; {_near(select, clauses)}")


def _near(name: str, clauses: list[str]) -> str:
    """What to do about a clause that is not there."""
    from difflib import get_close_matches

    near = get_close_matches(name.strip().upper(), clauses, n=3)
    return (
        f"did you mean {', '.join(near)}? `starquake clauses` lists all" if near else "`starquake clauses` lists them"
    )


def _known_failures(
    given: Path | None, clauses: list[str], systems: list[str], clients: list[str]
) -> dict[str, list[KnownFailure]]:
    """By product or client: what an address turns out to be is told by its broker, so every shipped list is at hand.

    ``systems`` and ``clients`` are those to be judged, which a given list may speak of whatever they are called.
    """
    from harness.clients.resolve import ADAPTERS
    from harness.fixture_files import known_failing_files
    from harness.known_failing import check_names, read

    shipped = known_failing_files()
    files = shipped if given is None else dict.fromkeys([*shipped, *systems], given)
    entries = {path: read(path) for path in set(files.values())}
    if given is not None:
        check_names(entries[given], clauses, [*ADAPTERS, *clients], systems)
    return {product: entries[path] for product, path in files.items()}


def _seeds_directory() -> Path:
    from harness.fixture_files import seeds_directory

    return seeds_directory()


def _tell(result: GateResult, directory: Path, junit: Path | None, as_json: bool) -> int:
    """Show a result and write its reports; the exit code. What was judged is told even when it cannot be written."""
    from harness.report.files import write_reports
    from harness.report.machine import lines
    from harness.report.terminal import show

    code, problem = result.exit_code(), ""
    try:
        page = write_reports(result, directory, junit)
    except OSError as error:
        where = error.filename or directory
        problem = (
            f"cannot write the report {where}: {error.strerror or error}; free space there or choose another place"
        )
        code = code if code in (EXIT_VIOLATION, EXIT_INTERRUPTED) else EXIT_USAGE
    if as_json:
        for line in lines(result, code):
            typer.echo(line)
    else:
        console = Console(highlight=False)
        show(result, console)
        if not problem:
            console.print(f"[dim]report[/dim] {escape(str(page))}", soft_wrap=True)
    for trouble in dict.fromkeys(pair.setup_error for pair in result.pairs if pair.setup_error):
        where = ", ".join(f"{pair.system} x {pair.client}" for pair in result.pairs if pair.setup_error == trouble)
        judged = any(pair.setup_error == trouble and pair.directed for pair in result.pairs)
        say(f"{where} {'ended early' if judged else 'could not be run'}: {trouble}")
    if problem:
        say(problem)
    return code


@app.command()
@guard
def run(
    plan: Annotated[Path, typer.Argument(help="A written plan, such as fixtures/plans/receipts-plain.json.")],
    system: Annotated[str, typer.Option("--system", help="System under test.")] = DEFAULT_SYSTEM,
    client: Annotated[str, typer.Option("--client", help="Client under test.")] = DEFAULT_CLIENTS[0],
    times: Annotated[int, typer.Option("--times", min=1, max=MOST_TIMES, help="How often to carry it out.")] = 1,
    known: Known = None,
    report: Report = None,
    client_conf: ClientConf = None,
    as_json: Json = False,
) -> int:
    """Carry one written plan out and judge it; its history is kept in the report."""
    from harness.clauses.catalogue import load
    from harness.gate.one_plan import PROFILE, OnePlan
    from harness.gate.run import Gate, Request
    from harness.report.files import prepare
    from harness.report.progress import Progress
    from harness.seeds.plan_file import read_plan
    from harness.systems.access import access_for
    from harness.worlds.resolve import world_for
    from properties.families import FAMILIES

    catalogue = load()
    written = read_plan(plan)
    listed = _known_failures(known, [clause.id for clause in catalogue], [system], [client])
    access = access_for([system], client_conf)
    directory = prepare(report or Path("reports") / f"run-{datetime.now():%Y%m%d-%H%M%S}")
    request = Request(
        systems=[system],
        clients=[client],
        profile=PROFILE,
        select="*",
        known=listed,
        report=directory,
        seed=1,
        thorough=False,
    )
    with Progress(Console(stderr=True)) as progress:
        result = Gate(
            request,
            catalogue=catalogue,
            exploration=OnePlan(list(FAMILIES), plan.stem, written, times),
            make_world=partial(world_for, access=access),
            seeds=[],
            watcher=progress,
        ).run()
    return _tell(result, directory, None, as_json)


# --- check and report -----------------------------------------------------------------------------------------------


@app.command()
@guard
def check(
    history: Annotated[list[Path], typer.Argument(help="Run directories: run.json and history/*.parquet.")],
    engine: Annotated[str, typer.Option("--engine", help="local.")] = "local",
    known: Known = None,
    out: Annotated[Path | None, typer.Option("--out", help="Directory for the reports.")] = None,
    as_json: Json = False,
) -> int:
    """Judge stored histories again, without any broker or client."""
    from harness.check import check as judge
    from harness.clauses.catalogue import load
    from harness.report.files import prepare

    if engine == "spark":
        raise UsageError("the engine 'spark' is not in this version; use --engine local")
    if engine != "local":
        raise UsageError(f"there is no engine {engine!r}; there is: local")
    catalogue = load()
    listed = _known_failures_of(history, known, catalogue)
    directory = prepare(out or Path("reports") / f"check-{datetime.now():%Y%m%d-%H%M%S}")
    return _tell(judge(history, catalogue, listed), directory, None, as_json)


def _known_failures_of(
    histories: list[Path], given: Path | None, catalogue: Catalogue
) -> dict[str, list[KnownFailure]]:
    """Those of the systems and clients of stored runs, so that they are judged as the gate would judge them."""
    from harness.check import parties

    return _known_failures(given, [clause.id for clause in catalogue], *parties(histories))


@app.command()
@guard
def report(
    run: Annotated[list[Path], typer.Argument(help="Report directories of gate or check, or run directories.")],
    out: Annotated[Path | None, typer.Option("--out", help="Write here instead of beside each result.")] = None,
    merge: Annotated[bool, typer.Option("--merge", help="One report of all of them; needs --out.")] = False,
) -> int:
    """Write HTML and JUnit of finished runs again, and show them."""
    from harness.check import check as judge
    from harness.clauses.catalogue import load
    from harness.gate.result import RESULT_FILE
    from harness.gate.result import load as load_result
    from harness.report.files import prepare

    for directory in run:
        if not directory.is_dir():
            raise UsageError(f"there is no directory {directory}")
    if merge:
        return _merged(run, out)
    catalogue = load()
    worst = EXIT_GREEN
    for directory, target in _report_targets(run, out):
        if (directory / RESULT_FILE).is_file():
            result = load_result(directory)
        else:
            result = judge([directory], catalogue, _known_failures_of([directory], None, catalogue))
        code = _tell(result, prepare(target), None, as_json=False)
        worst = EXIT_VIOLATION if EXIT_VIOLATION in (worst, code) else max(worst, code)
    return worst


def _merged(directories: list[Path], out: Path | None) -> int:
    """One report of several results of the gate, say those of a nightly job a version.

    A job that ended before it had a result does not take the page of the others away: its directory is named.
    """
    from harness.gate.merge import merge
    from harness.gate.result import load as load_result
    from harness.report.files import prepare

    if out is None:
        raise UsageError("--merge makes one report of all; say with --out where it goes")
    results, without = [], []
    for directory in {directory.resolve(): directory for directory in directories}.values():
        try:
            results.append(load_result(directory))
        except UsageError as error:
            without.append(str(error))
    if not results:
        raise UsageError(f"none of these directories has a result of the gate: {'; '.join(without)}")
    code = _tell(merge(results), prepare(out), None, as_json=False)
    for problem in without:
        say(f"left out of the report: {problem}")
    return code


def _report_targets(directories: list[Path], out: Path | None) -> list[tuple[Path, Path]]:
    """Each directory, once, with where its report goes. Raises ``UsageError`` when two would go to one place."""
    found = {directory.resolve(): directory for directory in directories}
    if out is None:
        return [(directory, directory) for directory in found.values()]
    if len(found) == 1:
        return [(directory, out) for directory in found.values()]
    taken: dict[str, Path] = {}
    for place, directory in found.items():
        if place.name in taken:
            raise UsageError(
                f"{taken[place.name]} and {directory} would both be written to {out / place.name};"
                " give each an --out of its own"
            )
        taken[place.name] = directory
    return [(directory, out / name) for name, directory in taken.items()]


# --- seeds ----------------------------------------------------------------------------------------------------------


@app.command()
@guard
def replay(
    seed: Annotated[str, typer.Argument(help="A seed file, or the id of a stored seed.")],
    system: Annotated[str | None, typer.Option("--system", help="Another system than the seed's.")] = None,
    client: Annotated[str | None, typer.Option("--client", help="Another client than the seed's.")] = None,
    times: Annotated[int, typer.Option("--times", min=1, help="How often to run it.")] = 10,
    client_conf: ClientConf = None,
    as_json: Json = False,
) -> int:
    """Run a seed again: exit 1 when its anomaly shows, 0 when it does not."""
    from harness.clauses.catalogue import load
    from harness.seeds.replay import attempt
    from harness.systems.access import access_for
    from harness.worlds.resolve import world_for

    stored = _find_seed(seed)
    if stored.protocol != "pulsar":
        raise UsageError(f"{seed} is for the protocol {stored.protocol!r}; this version replays pulsar only")
    if stored.expect.clause not in load():
        raise UsageError(f"{seed} expects the clause {stored.expect.clause!r}, which this version does not have")
    where = (system or stored.system, client or stored.client)
    console, progress = Console(highlight=False), Console(stderr=True)
    world = world_for(
        *where,
        None,
        lambda text: progress.print(f"[dim]{escape(text)}[/dim]"),
        access=access_for(where[:1], client_conf),
    )
    if not as_json:
        _show_seed(stored, where, console)
    try:
        world.start()
        with progress.status("running") as status:
            runs = attempt(
                world,
                stored.plan(),
                stored.expect,
                times,
                each=lambda so_far: status.update(f"{so_far.failed} of {so_far.tries} runs showed it"),
            )
    finally:
        world.stop()
    if as_json:
        low, high = runs.rate.interval()
        typer.echo(
            json.dumps(
                {
                    "type": "replay",
                    "seed": stored.id,
                    "clause": stored.expect.clause,
                    "anomaly": stored.expect.anomaly,
                    "system": where[0],
                    "client": where[1],
                    "failed": runs.failed,
                    "tries": runs.tries,
                    "interval": [round(low, 4), round(high, 4)],
                    "witness": [] if runs.sighting is None else list(runs.sighting.anomaly.witness),
                    "errors": runs.errors,
                }
            )
        )
    for error in dict.fromkeys(runs.errors):
        say(f"{runs.errors.count(error)} of {times} runs failed in the harness: {error}")
    if runs.sighting is not None:
        if not as_json:
            from harness.report.terminal import show_witness

            console.print(f"\n[bold red]Reproduced[/bold red] in {runs.rate}")
            console.print(escape(runs.sighting.anomaly.message))
            show_witness(runs.sighting.witness, console)
        return EXIT_VIOLATION
    if not runs.tries:
        return EXIT_HARNESS
    if not as_json:
        console.print(f"\n[bold green]Not reproduced[/bold green]: {stored.expect.anomaly} showed in {runs.rate}")
    return EXIT_GREEN


def _find_seed(name: str) -> Seed:
    from harness.seeds.seed import read

    path = Path(name)
    by_id = {path.stem: path for path in _seeds_directory().glob("*.json")}
    try:
        given = path.exists()
    except OSError as error:
        raise UsageError(f"{name!r} names no seed: {error.strerror}") from error
    return read(path if given else by_id.get(name, path))


def _show_seed(seed: Seed, where: tuple[str, str], console: Console) -> None:
    from harness.report.describe import step_label

    console.print(f"[bold]{seed.expect.clause}[/bold] {escape(seed.expect.anomaly)} [dim]seed {seed.id}[/dim]")
    console.print(f"[dim]{escape(where[0])} x {escape(where[1])}; stored with {seed.rate}[/dim]")
    if seed.note:
        console.print(escape(seed.note))
    for number, step in enumerate(seed.plan().steps(), start=1):
        console.print(f"  {number:>2}. {escape(step_label(step))}")


@app.command()
@guard
def seeds() -> int:
    """List the stored seeds."""
    from harness.seeds.seed import stored

    table = _table("id", "clause", "anomaly", "rate", "system x client", whole=4)
    for _, seed in stored(_seeds_directory()):
        rate = f"{seed.rate.failed}/{seed.rate.tries}"
        where = escape(f"{seed.system} x {seed.client}")
        table.add_row(seed.id, seed.expect.clause, escape(seed.expect.anomaly), rate, where)
    if table.row_count:
        _print_table(table)
    else:
        typer.echo("no seeds are stored")
    return EXIT_GREEN


# --- what there is --------------------------------------------------------------------------------------------------


@app.command()
@guard
def clauses(
    clause_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="One clause in full.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="What binds this system, as pulsar@2.10.5.")] = None,
) -> int:
    """List the clauses, or show one: its rule, whom it binds, in which versions, and where it comes from."""
    from harness.clauses.bindings import over_versions
    from harness.clauses.catalogue import load
    from harness.clauses.requirements import load as load_sets

    catalogue = load()
    if clause_id is None and system is not None:
        return _show_bindings(catalogue, system)
    if clause_id is None:
        table = _table("clause", "family", "binds", "promise", whole=3)
        for clause in catalogue:
            table.add_row(clause.id, clause.family, clause.binds, escape(clause.title))
        _print_table(table)
        return EXIT_GREEN
    if clause_id not in catalogue:
        raise UsageError(f"there is no clause {clause_id!r}; {_near(clause_id, [clause.id for clause in catalogue])}")
    clause = catalogue[clause_id]
    if system is not None:
        return _show_bindings([clause], system)
    console = Console(highlight=False)
    console.print(f"[bold]{clause.id}[/bold] {escape(clause.title)} [dim]({clause.family}, binds {clause.binds})[/dim]")
    console.print(escape(clause.rule))
    for title, value in (
        ("source", clause.source),
        ("needs of the system", " ".join(clause.needs_system)),
        ("needs of the client", " ".join(clause.needs_client)),
        ("decided by", " ".join(clause.decided_by)),
        ("known gap", clause.known_gap),
        *over_versions(clause, load_sets()),
    ):
        if value:
            console.print(f"[dim]{title:>20}[/dim]  {escape(value)}", soft_wrap=True)
    return EXIT_GREEN


def _show_bindings(clauses: Iterable[Clause], system: str) -> int:
    """What the frozen requirement set of a version says, with every setting at its default."""
    from harness.clauses.bindings import WORDS, of_version
    from harness.clauses.requirements import beyond_every_set, requirements_for
    from harness.systems.resolve import names_a_system

    if not names_a_system(system):
        raise UsageError(f"there is no system {system!r}; `starquake systems list` explains them")
    found = requirements_for(system)
    if found is None:
        typer.echo(f"no requirement set is frozen for {system}: every clause binds whose capabilities it has")
        return EXIT_GREEN
    version = system.partition("@")[2]
    rows = of_version(clauses, found, version)
    table = _table("clause", "family", "in this version", "why", whole=3)
    for row in rows:
        table.add_row(row.clause.id, row.clause.family, WORDS[row.standing], escape(row.why))
    _print_table(table)
    counted = Counter(row.standing for row in rows)
    said = ", ".join(f"{word}: {counted[standing]}" for standing, word in WORDS.items() if counted[standing])
    say(f"{said}; frozen for Pulsar {', '.join(found.frozen_for)}, settings at their defaults")
    if beyond_every_set(version):
        typer.echo(f"{system} is newer than every frozen set: this is the newest, of Pulsar {found.line}")
    return EXIT_GREEN


@systems_app.command("list")
@guard
def systems_list(as_json: Json = False) -> int:
    """List what may be named with --system, what of it is installed, and how large it is."""
    from harness.cli_systems import megabytes, rows

    table = _table("system", "state", "size", "what it is", whole=3)
    for row in rows(SYSTEMS):
        if as_json:
            line = {name: getattr(row, name) for name in ("name", "state", "bytes", "description")}
            typer.echo(json.dumps({"type": "system", **line}))
        style = {"installed": "green", "damaged": "bold red"}.get(row.state, "dim")
        table.add_row(escape(row.name), f"[{style}]{row.state}[/]", megabytes(row.bytes), escape(row.description))
    if not as_json:
        _print_table(table)
    return EXIT_GREEN


@systems_app.command("install")
@guard
def systems_install(
    system: Annotated[list[str], typer.Argument(help="Versions of Pulsar, as pulsar@4.0.7.")],
    again: Annotated[bool, typer.Option("--again", help="Also what is installed already, whatever its state.")] = False,
) -> int:
    """Fetch versions of Pulsar with Maven, check them and keep them in your cache, once for all projects."""
    from harness.cli_systems import install_all, versions

    install_all(versions(system), again=again, console=Console(stderr=True))
    return EXIT_GREEN


@systems_app.command("remove")
@guard
def systems_remove(
    system: Annotated[list[str], typer.Argument(help="Installed versions, as pulsar@4.0.7.")],
) -> int:
    """Delete installed versions of Pulsar from your cache."""
    from harness.cli_systems import remove_all, versions

    remove_all(versions(system), console=Console(stderr=True))
    return EXIT_GREEN


@systems_app.command("start")
@guard
def systems_start(
    system: Annotated[str, typer.Argument(help="What `systems list` names and is ours to start.")],
    as_json: Json = False,
) -> int:
    """Start a system, print its addresses, and stop it at Ctrl-C; its data goes away then."""
    from harness.cli_systems import run_until_interrupted
    from harness.systems.system import Address

    def show(address: Address, version: str) -> None:
        where = {"service_url": address.service_url, "admin_url": address.admin_url}
        found = {"system": system, "version": version, **where}
        if as_json:
            typer.echo(json.dumps({"type": "started", **found}))
        else:
            typer.echo("\n".join(f"{name} {value}" for name, value in found.items() if value))
            say(f"{system} runs; Ctrl-C stops it")

    try:
        run_until_interrupted(system, Console(stderr=True), show)
    except KeyboardInterrupt:
        say(f"{system} is stopped")
    return EXIT_GREEN


@clients_app.command("list")
@guard
def clients_list() -> int:
    """List what may be named with --client."""
    from harness.clients.resolve import ADAPTERS

    table = _table("client", "adapter")
    for name, module in ADAPTERS.items():
        table.add_row(name, module)
    _print_table(table)
    return EXIT_GREEN


def _table(*columns: str, whole: int = 1) -> Table:
    """A table whose first ``whole`` columns are never folded: they are copied into the next command."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number < whole)
    return table


def _print_table(table: Table) -> None:
    """One line a row where no terminal is; else as wide as it is, and wider where a whole column would be cut."""
    console = Console(highlight=False)
    widest = [
        max(
            Measurement.get(console, console.options.update(max_width=UNLIMITED), cell).maximum for cell in column.cells
        )
        for column in table.columns
    ]
    if console.is_terminal:
        least = [width if column.no_wrap else FOLDED for width, column in zip(widest, table.columns, strict=True)]
        console.width = max(console.width, sum(least) + GAP * (len(least) - 1))
    else:
        console.width = sum(widest) + GAP * (len(widest) - 1)
    console.print(table)


# --- the harness itself ---------------------------------------------------------------------------------------------


@app.command()
@guard
def mutants(
    family: Annotated[str | None, typer.Option("--family", help="Only the mutants of one family.")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="Only this mutant (again for more).")] = None,
    as_json: Json = False,
) -> int:
    """Hunt deliberately broken brokers and clients: the proof that the invariants can fail."""
    from harness.reference.mutants.registry import mutant_named
    from harness.reference.mutants.run import UNBROKEN, run_mutants
    from properties.families import FAMILIES

    if family is not None and family not in FAMILIES:
        raise UsageError(f"there is no family {family!r}; there are: {', '.join(FAMILIES)}")
    for name in only or ():
        mutant_named(name)

    def told(row: MutantRow) -> None:
        if as_json:
            line = {
                name: getattr(row, name)
                for name in ("name", "family", "breaks", "expected", "killed", "caught_by", "unexpected", "examples")
            }
            kind = "unbroken" if row.name == UNBROKEN else "mutant"
            found = {"seconds": round(row.seconds, 3), "shown_by": row.shown_by, "error": row.error}
            typer.echo(json.dumps({"type": kind, **line, **found}))
        else:
            _show_mutant(row)

    rows = run_mutants(told, family=family, only=only or ())
    for row in rows:
        if row.error and not row.killed:
            say(f"{row.name}: the machines broke: {row.error}")
    hunted = [row for row in rows if row.name != UNBROKEN]
    if not as_json:
        seconds = sum(row.seconds for row in rows)
        typer.echo(f"{sum(row.killed for row in hunted)} of {len(hunted)} mutants killed in {seconds:.0f} s")
    if all(row.fares_well for row in rows):
        return EXIT_GREEN
    broken = all(row.fares_well or (row.name == UNBROKEN and not row.unexpected) for row in rows)
    # The unbroken pair broke by itself and raised no alarm: that is the harness's own failure.
    return EXIT_HARNESS if broken else EXIT_VIOLATION


@app.command()
@guard
def doctor(as_json: Json = False) -> int:
    """Look at what this machine has, and say how to mend what is missing."""
    from harness.doctor import examine, healthy

    findings = examine()
    table = _table("what", "state", "found", "needed for")
    for finding in findings:
        if as_json:
            line = {name: getattr(finding, name) for name in ("name", "ok", "detail", "mend", "needed_for", "required")}
            typer.echo(json.dumps({"type": "doctor", **line}))
        state = "[green]ok[/]" if finding.ok else "[bold red]missing[/]" if finding.required else "[yellow]absent[/]"
        mend = "" if finding.ok or not finding.mend else f"\n{finding.mend}"
        table.add_row(finding.name, state, escape(f"{finding.detail}{mend}"), escape(finding.needed_for))
    if not as_json:
        _print_table(table)
    return EXIT_GREEN if healthy(findings) else EXIT_USAGE


def _show_mutant(row: MutantRow) -> None:
    """One line: the verdict, how long it took, which expected clauses objected, and what else did."""
    from harness.reference.mutants.run import UNBROKEN

    if row.name == UNBROKEN:
        word, style = ("clean", "green") if row.fares_well else ("FALSE ALARM", "bold red")
    else:
        word, style = ("killed", "green") if row.killed else ("SURVIVED", "bold red")
    others = ""
    if row.unexpected:
        only = "" if row.killed or row.name == UNBROKEN else f"not by {' '.join(row.expected)} but "
        others = f"  {only}also {' '.join(row.unexpected)}" if not only else f"  {only}by {' '.join(row.unexpected)}"
    Console(highlight=False).print(
        f"[{style}]{word:<11}[/] {escape(row.name):<40} {row.family:<12} {row.examples:>4} runs {row.seconds:6.2f} s"
        f"  {' '.join(row.caught_by)}[dim]{escape(others)}[/dim]",
        soft_wrap=True,
    )
