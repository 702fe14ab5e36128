"""The contract is a module beside the tests, whose assertions pytest is to explain all the same."""

import pytest

pytest.register_assert_rewrite("tests.storage.contract")
