"""JUnit XML: one test case a clause x system x client, in the shape Jenkins, GitLab and GitHub actions read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from harness.gate.result import Failure, GateResult
from harness.report.describe import event_label, step_label
from harness.verdict import Cell

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(result: GateResult) -> bytes:
    """The document. ``n/a`` and ``unknown`` are skipped, ``error`` is an error, ``known`` and ``flaky`` pass.

    A stale known failure is a failure of type ``stale``: the list is wrong, and only a person can mend it.
    """
    root = ElementTree.Element("testsuites", name="starquake", time=f"{result.seconds:.3f}")
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for pair in result.pairs:
        cells = [cell for cell in result.cells if (cell.system, cell.client) == (pair.system, pair.client)]
        suite = ElementTree.SubElement(
            root, "testsuite", name=f"{pair.system}.{pair.client}", time=f"{pair.seconds:.3f}", timestamp=result.started
        )
        _properties(
            suite,
            {
                "starquake": result.versions.get("starquake", ""),
                "system.version": pair.system_version,
                "client.version": pair.client_version,
                "profile": result.profile,
                "seed": "" if result.seed is None else str(result.seed),
            },
        )
        for cell in cells:
            _case(suite, cell, [failure for failure in result.failures if _belongs(failure, cell)])
        counts = {
            "tests": len(cells),
            "failures": len(suite.findall("testcase/failure")),
            "errors": len(suite.findall("testcase/error")),
            "skipped": len(suite.findall("testcase/skipped")),
        }
        if pair.setup_error:
            case = ElementTree.SubElement(
                suite, "testcase", classname=f"{pair.system}.{pair.client}", name="setup", time="0"
            )
            _text(ElementTree.SubElement(case, "error", type="setup", message=_clean(pair.setup_error)), "")
            counts["tests"] += 1
            counts["errors"] += 1
        for name, count in counts.items():
            suite.set(name, str(count))
            totals[name] += count
    for name, count in totals.items():
        root.set(name, str(count))
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _belongs(failure: Failure, cell: Cell) -> bool:
    return (failure.clause, failure.system, failure.client) == (cell.clause, cell.system, cell.client)


def _case(suite: ElementTree.Element, cell: Cell, failures: Sequence[Failure]) -> None:
    case = ElementTree.SubElement(
        suite, "testcase", classname=f"{cell.system}.{cell.client}", name=cell.clause, time="0"
    )
    properties = {"verdict": cell.verdict, "title": cell.title, "judged": str(cell.judged)}
    for breach in cell.breaches:
        if breach.accepted:
            rate = f" {breach.rate}" if breach.rate else ""
            properties[f"{breach.accepted}.{breach.anomaly}"] = f"expected failure{rate}: {breach.reason}"
        if breach.seed:
            properties[f"seed.{breach.anomaly}"] = breach.seed
    properties |= {f"replay.{failure.anomaly}": failure.replay for failure in failures if failure.replay}
    _properties(case, properties)
    if cell.verdict == "fail":
        for failure in failures:
            if not failure.accepted:
                message = _clean(f"{failure.anomaly}: {failure.message}")
                _text(ElementTree.SubElement(case, "failure", type=failure.anomaly, message=message), _explain(failure))
        if not any(not failure.accepted for failure in failures):
            broken = [breach for breach in cell.breaches if not breach.accepted]
            said = "; ".join(f"{breach.anomaly}: {breach.message}" for breach in broken)
            ElementTree.SubElement(case, "failure", type="violation", message=_clean(said))
    elif cell.verdict == "error":
        ElementTree.SubElement(case, "error", type="harness", message=_clean(cell.reason))
    elif cell.verdict in ("n/a", "unknown"):
        ElementTree.SubElement(case, "skipped", message=_clean(f"{cell.verdict}: {cell.reason}"))
    if cell.stale:
        ElementTree.SubElement(case, "failure", type="stale", message=_clean("; ".join(cell.stale)))


def _explain(failure: Failure) -> str:
    witness = set(failure.excerpt.witness)
    lines = ["witness:"]
    lines += [
        f"  #{event.index} {event.layer} {event_label(event)}"
        for event in failure.excerpt.events
        if event.index in witness
    ]
    lines.append("plan:")
    lines += [f"  {step_label(step)}" for step in failure.plan.steps()]
    if failure.rate is not None:
        lines.append(f"reproduction: {failure.rate}")
    if failure.replay:
        lines.append(failure.replay)
    return "\n".join(lines)


def _properties(parent: ElementTree.Element, values: dict[str, str]) -> None:
    properties = ElementTree.SubElement(parent, "properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", name=name, value=_clean(value))


def _text(element: ElementTree.Element, text: str) -> None:
    element.text = _clean(text)


def _clean(text: str) -> str:
    # What a broker says in an error may hold bytes XML 1.0 has no way to write.
    return _NOT_XML.sub("\ufffd", text)
