"""How a client library under test is driven: one contract, many languages (``docs/adapter-contract.md``)."""
