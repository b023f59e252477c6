"""The error table of pulsar-client: complete, and never more certain than the client is."""

import _pulsar
import pulsar

from harness.clients.client import FAIL_KINDS, UNKNOWN_KINDS
from harness.clients.python_errors import MEANING, of_exception, of_result


def exceptions_of_the_package():
    found = {
        name: value
        for name, value in vars(_pulsar).items()
        if isinstance(value, type) and issubclass(value, pulsar.PulsarException)
    }
    del found["PulsarException"]
    return found


def test_every_exception_and_every_result_code_of_the_package_has_a_meaning():
    assert set(MEANING) == set(exceptions_of_the_package())
    assert set(MEANING) == set(_pulsar.Result.__members__) - {"Ok"}


def test_meanings_are_kinds_of_the_contract():
    for meaning in MEANING.values():
        assert {meaning.at_once, meaning.later} <= FAIL_KINDS | UNKNOWN_KINDS


def test_a_late_error_is_never_more_certain_than_the_same_error_at_once():
    for name, meaning in MEANING.items():
        if meaning.at_once in UNKNOWN_KINDS:
            assert meaning.later in UNKNOWN_KINDS, name


def test_what_pending_sends_are_failed_with_proves_nothing():
    for name in ("AlreadyClosed", "NotConnected"):
        error = exceptions_of_the_package()[name]("text")
        assert of_exception(error, at_once=True)[0] in FAIL_KINDS
        assert of_exception(error, at_once=False)[0] in UNKNOWN_KINDS
        result = _pulsar.Result.__members__[name]
        assert of_result(result, at_once=False)[0] in UNKNOWN_KINDS


def test_a_result_code_without_a_name_is_unknown():
    assert of_result(_pulsar.Result(46), at_once=True)[0] == "disconnected"
    assert of_result(_pulsar.Result(99), at_once=True)[0] == "other"


def test_refused_arguments_are_invalid():
    assert of_exception(ValueError("x"), at_once=False)[0] == "invalid"
    assert of_exception(RuntimeError("x"), at_once=True)[0] == "other"
