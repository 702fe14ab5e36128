"""The short form of the campaign in concurrency.py."""


def test_processes_may_write_and_read_one_view_at_once(run_campaign):
    printed = run_campaign(
        "concurrency.py", "--seconds", "10", "--writers", "3", "--readers", "2", "--seed", "11"
    )
    assert " 0 failures" in printed
