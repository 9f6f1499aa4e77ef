"""Every error and warning that users of the interface rely on has a test, here or elsewhere, or a case that needs a GPU, or a reason why it cannot come up."""

import ast

import pytest
from conftest import ROOT

# What goes wrong, by the tests (files after `::`) and GPU cases that show what comes of it.
SHOWN = {
    "a manager asked for on another thread": ["test_check_20_a_manager_belongs_to_one_thread"],
    "a model that torch.compile wraps": ["test_check_21_a_compiled_model_is_refused"],
    "a block before offload": ["test_check_24_what_needs_a_model_is_refused_before_offload"],
    "a block where DISCOVERY is skipped": ["test_skipping_discovery_begins_with_profiling_where_there_are_units"],
    "a block in a block, or in a unit": ["test_blocks_inside_units_and_blocks_are_refused_while_the_model_is_learnt"],
    "memory usage before INFERENCE": ["test_check_19_memory_usage_is_known_in_inference_only"],
    "a profile saved before offload, or before INFERENCE": [
        "test_check_24_what_needs_a_model_is_refused_before_offload",
        "test_check_31_profiles_are_saved_where_they_are_asked_for_and_start_a_model",
    ],
    "a profile saved read-only, without a folder, or switched off": [
        "test_check_33_a_read_only_profile_is_not_saved_and_switched_off_nothing_is_read"
    ],
    "a profile loaded without a model": ["test_a_profile_can_be_loaded_before_any_offload"],
    "a profile loaded without a folder, or one that is missing": ["test_check_33_a_missing_profile_is_said"],
    "a profile of another version or model": ["test_check_32_profiles_that_do_not_fit_are_value_errors"],
    "profiling controlled before offload": ["test_check_24_what_needs_a_model_is_refused_before_offload"],
    "one resume too many": [
        "test_check_27_suspending_reaches_the_library_and_is_counted",
        "test_check_27_switched_off_profiling_control_does_nothing",
    ],
    "pinned memory without a GPU": ["test_pinned_memory_needs_a_gpu", "test_without_a_gpu_pinning_is_an_error_and_not_pinning_is_fine"],
    "no pinned memory, and no GPU": ["test_without_a_gpu_and_without_pinning_the_model_runs_where_it_is"],
    "options that cannot change any more": ["test_check_22_what_offload_took_once_only_warns"],
    "block counts that do not fit together": ["test_check_2_block_counts_must_fit_together"],
    "an unknown variable": ["test_check_10_an_unknown_variable_is_refused_with_a_suggestion_if_one_is_alike"],
    "a variable that cannot be read": ["test_check_11_a_variable_that_cannot_be_read_is_named_with_its_value"],
    "a file that cannot be read": ["test_bad_files_are_refused", "test_a_file_that_is_not_there_is_a_file_not_found_error"],
    "patterns that match nothing, or leave nothing": ["test_patterns_that_match_nothing_are_said"],
    "a view buffer above the budget": ["test_view_needs_the_largest_label_and_what_labels_share"],
    "storage that weights share": ["test_tensors_of_one_storage_share_one_again_with_their_views"],
    "a tensor read outside its layer": ["read_outside"],
    "a budget below 256 MiB": ["test_a_budget_is_capped_at_what_is_free_and_refused_below_256_mib"],
    "numbers that strategies do not take": ["test_what_is_not_allowed_is_a_value_error_that_names_it"],
    "BudgetFill without a budget or layers": ["test_check_37_budget_fill_without_a_budget_or_layers_has_no_answer"],
    "a budget that cannot be met": ["test_check_37_what_cannot_be_met_gets_a_peak_no_higher_and_a_warning"],
    "a replan that cannot be": ["test_a_replan_that_cannot_be_is_ignored", "test_a_replan_is_not_asked_for_where_nothing_can_follow"],
    "a model used after it was not preserved": ["test_release_without_preserving_leaves_the_model_unusable"],
    "a model compiled whole while it is learnt": ["test_a_model_that_was_compiled_whole_is_warned_of_when_its_phase_changes"],
    "host_register where it cannot be": ["test_the_pinner_for_a_configuration"],
    "shared sessions": ["test_shared_memory_is_refused_until_sessions_exist", "test_errors_of_shared_sessions_say_whose_they_are"],
    "no module": ["test_what_is_no_module_is_refused"],
    "a strategy that is none": ["test_a_strategy_is_an_object_with_compute_or_a_name"],
}  # fmt: skip

CANNOT_BE = {
    "a replan that failed": "addresses stay, so that the old plan goes on and nothing is unsafe: the status says failed",
    "no answer of AdaptiveStrategy": "its first candidate, KnapsackBlock, has an answer to every question",
    "piecewise_prefetch='error' violated": "captured pieces join copies by themselves; the policy says nothing yet, which offload() says",
    "a creator of a shared session that died, failed, or has another version": "sessions that share memory come later",
}


def functions(folder):
    """Names of the functions of all Python files in a folder."""
    return {
        node.name
        for file in folder.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
    }


EXISTING = functions(ROOT / "tests" / "python") | functions(ROOT / "tests" / "gpu" / "cases")


@pytest.mark.parametrize("condition", SHOWN)
def test_what_goes_wrong_is_shown(condition):
    missing = set(SHOWN[condition]) - EXISTING
    assert SHOWN[condition] and not missing, missing


def test_nothing_is_both_shown_and_impossible():
    assert not SHOWN.keys() & CANNOT_BE.keys() and all(CANNOT_BE.values())


def test_a_file_that_is_not_there_is_a_file_not_found_error(tmp_path):
    pytest.importorskip("torch", reason="needs the torch that tools/ci_torch.sh installs")
    import flextensor as ft

    with pytest.raises(FileNotFoundError, match=r"nowhere\.toml"):
        ft.load_config(tmp_path / "nowhere.toml")
