"""The delivery rules: permits, dispatch, hand-over to the application, life of a consumer."""

from __future__ import annotations

from typing import Any

from harness.invariants.core import Invariant
from harness.invariants.credit import BrokerCredit, ClientGrants
from harness.invariants.dispatch import Completeness, MessageContent, SharedDispatch, SingleActiveDispatch
from harness.invariants.handover import Handover, OneIdentity
from harness.invariants.lifecycle import Farewell, SeekEffect, SessionDiscipline
from harness.invariants.refusal import Refusal
from harness.invariants.subscription_kept import SubscriptionKept

INVARIANTS: tuple[Invariant[Any], ...] = (
    BrokerCredit(),
    ClientGrants(),
    SingleActiveDispatch(),
    SharedDispatch(),
    MessageContent(),
    Completeness(),
    Handover(),
    OneIdentity(),
    SessionDiscipline(),
    Farewell(),
    SeekEffect(),
    Refusal(),
    SubscriptionKept(),
)
