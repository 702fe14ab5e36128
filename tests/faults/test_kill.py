"""The short form of the campaign in kill.py."""


def test_a_writer_may_be_killed_at_any_step(run_campaign):
    printed = run_campaign("kill.py", "--kills", "40", "--seed", "11")
    assert "40 kills" in printed
    assert "0 failures" in printed
