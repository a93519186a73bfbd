"""The progress line."""

import io

from mercer.learning.progress import Progress


def test_progress_appears_late_and_can_be_turned_off():
    stream = io.StringIO()
    early = Progress(patience=100.0, stream=stream)
    early("nothing yet")
    assert stream.getvalue() == ""
    late = Progress(patience=0.0, stream=stream)
    late("fitting 10 rows")
    assert stream.getvalue().startswith("mercer: fitting 10 rows")
    silent = io.StringIO()
    Progress(shown=False, patience=0.0, stream=silent)("nothing")
    assert silent.getvalue() == ""
