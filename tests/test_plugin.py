"""The pytest plugin, each time in a pytest of its own: other tests stay as they are, the families obey, errors are
told without a traceback."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.worlds.simulated import SimulatedWorld
from properties.families import FAMILIES
from properties.plugin import PROFILES

ROOT = Path(__file__).resolve().parent.parent
HYPOTHESIS, OURS = "_hypothesis_pytestplugin", "properties.plugin"
ORDERS = {"ours last": (HYPOTHESIS, OURS), "ours first": (OURS, HYPOTHESIS)}
FAMILY = sorted(FAMILIES)[0]

FOREIGN = """
    from hypothesis import given, settings, strategies as st
    drawn = []

    @given(st.integers())
    def test_foreign(n):
        drawn.append(n)

    def test_told():
        print(f"FOREIGN {len(drawn)} {settings.default!r}")
"""


@pytest.fixture
def run(tmp_path):
    """Run pytest in an empty directory with just the named plugins; ``ci``: in what Hypothesis takes for a CI."""

    def pytest_in(*arguments, plugins=ORDERS["ours last"], ci=False, **files):
        for name, text in files.items():
            lines = [line.removeprefix("    ") for line in text.splitlines()]
            (tmp_path / f"{name}.py").write_text("\n".join(lines))
        # What stands for a CI is whatever Hypothesis looks at, and so nothing of this test's own surroundings.
        environment = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR")}
        environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | ({"CI": "1"} if ci else {})
        chosen = [part for plugin in plugins for part in ("-p", plugin)]
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", *chosen, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return pytest_in


def foreign(done):
    """What the foreign tests said of their settings; the database is named after a directory of the run."""
    assert done.returncode == 0, done.stdout + done.stderr
    return re.search(r"FOREIGN .*", done.stdout)[0]


# --- other tests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ci", [False, True], ids=["desk", "ci"])
@pytest.mark.parametrize("asked", [None, "ci", "smoke", "nightly"])
def test_foreign_tests_run_as_without_the_plugin(run, ci, asked) -> None:
    option = ("--hypothesis-profile", asked) if asked else ()
    # Without the plugin nobody knows the last two: they change nothing.
    known = option if asked == "ci" else ()
    alone = foreign(run(*known, plugins=(HYPOTHESIS,), ci=ci, test_foreign=FOREIGN))
    assert alone.startswith("FOREIGN 100 ")
    for plugins in ORDERS.values():
        assert foreign(run(*option, plugins=plugins, ci=ci, test_foreign=FOREIGN)) == alone


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_somebody_registered_stays_theirs(run, order, name) -> None:
    conftest = f"import hypothesis; hypothesis.settings.register_profile({name!r}, max_examples=23)"
    done = run("--hypothesis-profile", name, plugins=ORDERS[order], conftest=conftest, test_foreign=FOREIGN)
    assert foreign(done).startswith("FOREIGN 23 ")


def test_an_unknown_profile_is_still_refused(run) -> None:
    done = run("--hypothesis-profile", "weekly", test_foreign=FOREIGN)
    assert done.returncode != 0
    assert "'weekly' is not registered" in done.stdout + done.stderr


def test_a_session_without_families_does_not_pay_for_them(run) -> None:
    plain = """
    import sys

    def test_plain():
        loaded = {name.partition(".")[0] for name in sys.modules}
        assert "properties" in loaded
        assert not loaded & {"hypothesis", "harness"}
    """
    done = run(test_plain=plain)
    assert done.returncode == 0, done.stdout


# --- the families -----------------------------------------------------------------------------------------------------

WATCHING = """
    from hypothesis import settings, stateful
    from harness.worlds import simulated
    opened, asked = [], []
    carry_out = stateful.run_state_machine_as_test

    class Watched(simulated.SimulatedWorld):
        def open(self, plan=None, *, alone=False):
            opened.append(plan)
            return super().open(plan, alone=alone)

    def watched(machine, *, settings):
        asked.extend([settings.max_examples, settings.stateful_step_count])
        carry_out(machine, settings=settings)

    simulated.SimulatedWorld = Watched
    stateful.run_state_machine_as_test = watched

    def pytest_unconfigure(config):
        print(f"\\nOPENED {len(opened)} ASKED {asked} FOREIGN {settings.default.max_examples}")
"""


def watched(done, foreign=100):
    """How many sessions there were, and for how many examples and steps Hypothesis was asked."""
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"OPENED (\d+) ASKED (.*) FOREIGN (\d+)", done.stdout)
    assert int(found[3]) == foreign
    return int(found[1]), tuple(json.loads(found[2]))


def families(run, *arguments, plugins=ORDERS["ours last"], plans="directed or drawn", **files):
    return run(
        f"--rootdir={ROOT}",
        "--confcutdir=.",
        str(ROOT / "properties/test_families.py"),
        "-k",
        f"({plans}) and {FAMILY}",
        "-p",
        "watching",
        *arguments,
        plugins=plugins,
        watching=WATCHING,
        **files,
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("arguments", "profile"), [((), "smoke"), (("smoke",), "smoke"), (("ci",), "ci")])
def test_the_families_draw_as_their_profile_says(run, order, arguments, profile) -> None:
    option = ("--hypothesis-profile", *arguments) if arguments else ()
    opened, asked = watched(families(run, *option, plugins=ORDERS[order], plans="drawn"))
    assert asked == PROFILES[profile]
    # What Hypothesis discards, it has drawn all the same.
    assert opened >= PROFILES[profile][0]


def test_of_a_foreign_profile_the_examples_and_steps_count(run) -> None:
    theirs = "import hypothesis; hypothesis.settings.register_profile('theirs', max_examples=5, stateful_step_count=3)"
    done = families(run, "--hypothesis-profile", "theirs", "-p", "theirs", plans="drawn", theirs=theirs)
    assert watched(done, foreign=5)[1] == (5, 3)


@pytest.mark.parametrize(
    "arguments", [("smoke",), ("ci",), ("nightly", "--hypothesis-verbosity", "quiet")], ids=lambda given: given[0]
)
def test_directed_plans_are_those_of_the_profile(run, arguments) -> None:
    folders = {"smoke": ["."], "ci": [".", "ci"], "nightly": [".", "ci", "nightly"]}[arguments[0]]
    counts = [len(list((ROOT / "fixtures/plans" / folder).glob(f"{FAMILY}-*.json"))) for folder in folders]
    assert all(counts)
    opened, _ = watched(families(run, "--hypothesis-profile", *arguments, plans="directed"))
    assert opened == sum(counts)


# --- failures ---------------------------------------------------------------------------------------------------------

BAD = {
    "system": (("--system", "nope"), "no system 'nope'"),
    "client": (("--client", "nope"), "the simulated world has one client"),
    "client of a system": (("--system", "reference", "--client", "nope"), "there is no client 'nope'"),
    "mutant": (("--system", "mutant:nope"), "no mutant is called 'nope'"),
    "unreachable": (("--system", "pulsar://127.0.0.1:1"), "no Pulsar broker at pulsar://127.0.0.1:1"),
    "known": (("--known", "/nonexistent"), "cannot read the known-failing list /nonexistent"),
    "known clause": (("--known", "list.txt"), "list.txt:1: there is no clause 'NOPE-01'"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_the_user_can_mend_is_one_message(run, tmp_path, what) -> None:
    arguments, message = BAD[what]
    (tmp_path / "list.txt").write_text("* | * | NOPE-01 | * | known | no such clause\n")
    done = families(run, *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"starquake: {message}" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert not re.search(r"^(E  |>  |ERROR )", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("broken", ["start", "open"])
def test_a_defect_of_the_harness_is_no_matter_of_the_users(run, broken) -> None:
    code = f"""
    from harness.worlds import simulated

    def fail(self, *arguments):
        raise RuntimeError("a defect in {broken}")

    simulated.SimulatedWorld.{broken} = fail
    """
    assert hasattr(SimulatedWorld, broken)
    done = families(run, "-p", "defect", plans="directed", defect=code)
    assert done.returncode == 1
    assert f"RuntimeError: a defect in {broken}" in done.stdout


@pytest.mark.parametrize("kind", ["directed", "drawn"])
def test_a_failure_tells_how_to_run_it_again(run, tmp_path, monkeypatch, kind) -> None:
    done = run(
        f"--rootdir={ROOT}",
        str(ROOT / "properties/test_families.py"),
        "-k",
        f"{kind} and receipts",
        "--system",
        "mutant:client-changes-payloads",
    )
    assert done.returncode == 1, done.stdout
    told = re.findall(r"run it again: (starquake replay \S+)", done.stdout)
    assert told
    monkeypatch.chdir(tmp_path)
    replayed = CliRunner().invoke(app, [*shlex.split(told[0])[1:], "--times", "1"])
    assert replayed.exit_code == 1, replayed.output
    assert "Reproduced" in replayed.output
