"""The short form of the campaign in fuzz.py."""


def test_damaged_and_forged_files_are_refused_or_safe_to_read(run_campaign):
    printed = run_campaign("fuzz.py", "--inputs", "500", "--seed", "11")
    assert "500 inputs of seed 11, 0 failures" in printed
