"""The short form of the campaign in kill_bucket.py."""


def test_a_writer_may_be_killed_at_any_step_of_publishing(run_campaign):
    printed = run_campaign("kill_bucket.py", "--kills", "3", "--seed", "11")
    assert "3 kills" in printed
    assert " 0 failures" in printed
