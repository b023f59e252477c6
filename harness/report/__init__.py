"""What is told of a result: on a terminal, to a machine, as JUnit, as a page to show a colleague."""
