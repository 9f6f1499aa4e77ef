"""The configuration of the Python interface: defaults, refusals, sources and their order. What the options do is
tested elsewhere; the table itself is tested in the configuration crate."""

import copy
import json
import logging
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from flextensor import _native
from flextensor.config import (
    OffloadConfig,
    ValidationError,
    load_config,
    load_config_from_env,
    load_config_from_file,
)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    """None of our variables is set."""
    import os

    for name in [name for name in os.environ if name.startswith(("FT_", "OUR_"))]:
        monkeypatch.delenv(name)


def refused(**options):
    """The message with which the options are refused."""
    with pytest.raises(ValidationError) as caught:
        OffloadConfig(**options)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


def test_check_1_every_default_is_that_of_the_documents():
    config = OffloadConfig()
    documented = {
        "enabled": True, "gpu_device": 0, "pinned_memory": True, "pinned_memory_mode": "torch", "shm_enabled": False,
        "shm_namespace": None, "shm_wait_timeout": 0.0, "discovery_iters": 1, "skip_discovery": False,
        "profiling_iters": 10, "external_compile": False, "transfer_budget_scale": 1.0,
        "transfer_mode": "allocation_block_transfer", "num_blocks": 4, "min_blocks": 4, "max_gpu_mem_fraction": None,
        "profile_storage_dir": None, "profile_read_only": False, "load_strategy": None,
        "enable_instrumentation": False, "instrumentation_output_dir": ".flextensor/instrumentation",
        "offload_timing": "off", "piecewise_prefetch": "warn", "include_patterns": ["*"], "exclude_patterns": [],
        "enable_diagnostics": False, "profile_mode": "view",
    }  # fmt: skip
    assert {key: getattr(config, key) for key in documented} == documented
    assert config.model_fields_set == set()


def test_every_option_of_the_table_is_an_attribute_and_nothing_else_is():
    keys = [row[0] for row in _native.option_table()]
    assert sorted(OffloadConfig().model_dump()) == sorted(keys)
    assert sorted(OffloadConfig.__signature__.parameters) == sorted(keys)


def test_check_2_block_counts_must_fit_together():
    assert "num_blocks must be at least min_blocks" in refused(num_blocks=2)
    assert OffloadConfig(num_blocks=2, min_blocks=2).num_blocks == 2
    assert "num_blocks = 1" in refused(num_blocks=1)
    assert "min_blocks = 5" in refused(min_blocks=5)


def test_check_3_numbers_outside_their_ranges_are_refused_with_what_is_allowed():
    for name, value in [
        ("max_gpu_mem_fraction", 0),
        ("max_gpu_mem_fraction", 1.01),
        ("transfer_budget_scale", 0),
    ]:
        assert f"{name} = {value}" in refused(**{name: value}) and "allowed: a number" in refused(
            **{name: value}
        )
    for name in ["gpu_device", "discovery_iters", "shm_wait_timeout"]:
        assert f"{name} = -1" in refused(**{name: -1})
    assert OffloadConfig(max_gpu_mem_fraction=1.0, profiling_iters=0).profiling_iters == 0


def test_check_4_torch_function_needs_the_strategy_mode():
    assert "transfer_mode must be strategy" in refused(profile_mode="torch_function")
    OffloadConfig(profile_mode="torch_function", transfer_mode="strategy")


def test_check_5_timing_and_external_compile_need_a_block_mode():
    for options in [{"offload_timing": "eager"}, {"external_compile": True}]:
        assert "transfer_mode must be allocation_block_transfer" in refused(
            transfer_mode="strategy", **options
        )
        OffloadConfig(transfer_mode="raw_block_transfer", **options)


def test_check_6_shared_memory_needs_a_namespace():
    assert "shm_namespace must be set" in refused(shm_enabled=True)
    assert "shm_namespace" in refused(shm_enabled=True, shm_namespace="  ")
    assert OffloadConfig(shm_enabled=True, shm_namespace="run").shm_namespace == "run"


def test_check_8_an_unknown_keyword_is_ignored_with_a_warning_and_a_dropped_one_is_refused():
    with pytest.warns(UserWarning, match="num_bloks is ignored; did you mean num_blocks") as caught:
        assert OffloadConfig(num_bloks=6).num_blocks == 4
    assert caught[0].filename == __file__
    assert "0.4.0" in refused(warmup_iters=3)
    assert "0.2.0" in refused(release_tensors=True)


def test_check_9_variables_alone_do_not_switch_on(monkeypatch, tmp_path):
    assert load_config().enabled is False
    assert load_config_from_env().enabled is False
    (tmp_path / "a.yaml").write_text("")
    assert load_config(tmp_path / "a.yaml").enabled is True
    monkeypatch.setenv("FT_ENABLED", "1")
    assert load_config().enabled is True
    assert load_config_from_env().enabled is True


def test_check_10_an_unknown_variable_is_refused_with_a_suggestion_if_one_is_alike(monkeypatch):
    monkeypatch.setenv("FT_NUM_BLOKS", "6")
    for load in [load_config, load_config_from_env]:
        with pytest.raises(ValueError, match="FT_NUM_BLOKS; did you mean FT_NUM_BLOCKS"):
            load()
    assert load_config(use_env=False).enabled is True
    monkeypatch.delenv("FT_NUM_BLOKS")
    monkeypatch.setenv("FT_ZZZZ", "1")
    with pytest.raises(ValueError, match="FT_ZZZZ") as caught:
        load_config()
    assert "did you mean" not in str(caught.value)


def test_check_11_a_variable_that_cannot_be_read_is_named_with_its_value(monkeypatch):
    for name, value in [("FT_ENABLED", "maybe"), ("FT_NUM_BLOCKS", "x"), ("FT_GPU_DEVICE", "")]:
        with monkeypatch.context() as one:
            one.setenv(name, value)
            with pytest.raises(ValueError, match=f'{name}: .* = "{value}"'):
                load_config()


def test_check_13_a_dropped_variable_only_warns(monkeypatch, caplog):
    monkeypatch.setenv("FT_WARMUP_ITERS", "3")
    with caplog.at_level(logging.WARNING, "flextensor"):
        assert load_config().discovery_iters == 1
    assert "FT_WARMUP_ITERS was removed in 0.4.0" in caplog.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"profiling_iters": 6}'),
        ("a.yaml", "profiling_iters: 6\n"),
        ("a.yml", "profiling_iters: 6\n"),
        ("a.ini", "[flextensor]\nprofiling_iters = 6\n"),
        ("a.conf", "[flextensor]\nprofiling_iters = 6\n"),
        ("a.toml", "profiling_iters = 6\n"),
    ],
)
def test_check_14_keywords_win_over_variables_and_these_over_files(monkeypatch, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    path = tmp_path / name
    assert load_config(path).profiling_iters == 6
    monkeypatch.setenv("FT_PROFILING_ITERS", "8")
    assert load_config(path).profiling_iters == 8
    assert load_config(path, profiling_iters=5).profiling_iters == 5
    assert load_config(path, use_env=False).profiling_iters == 6
    assert load_config_from_file(str(path)).profiling_iters == 6
    assert load_config_from_file(path, profiling_iters=7).profiling_iters == 7
    assert load_config_from_env().profiling_iters == 8


def test_the_file_variable_names_the_file(monkeypatch, tmp_path):
    (tmp_path / "a.json").write_text('{"profiling_iters": 6}')
    monkeypatch.setenv("FT_CONFIG_FILE", str(tmp_path / "a.json"))
    monkeypatch.setenv("OUR_FILE", str(tmp_path / "b.json"))
    assert load_config().profiling_iters == load_config_from_file().profiling_iters == 6
    for load in [
        lambda: load_config(config_file_env_var="OUR_FILE"),
        lambda: load_config_from_file(env_var="OUR_FILE"),
        lambda: load_config_from_file(env_var="NOT_SET"),
    ]:
        with pytest.raises(FileNotFoundError):
            load()


def test_bad_files_are_refused(tmp_path):
    for name, text in [("a.ini", "profiling_iters = 6\n"), ("a.txt", ""), ("a.json", "[1]"), ("b.json", "{")]:
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=name):
            load_config(tmp_path / name)
    (tmp_path / "c.json").write_text('{"num_bloks": 3, "profiling_iters": 7}')
    with pytest.warns(UserWarning, match=r"c\.json.*num_bloks"):
        assert load_config(tmp_path / "c.json").profiling_iters == 7


def test_another_prefix_reads_other_variables_and_is_named_in_messages(monkeypatch):
    monkeypatch.setenv("FT_PROFILING_ITERS", "8")
    monkeypatch.setenv("OUR_PROFILING_ITERS", "9")
    assert load_config(env_prefix="OUR_").profiling_iters == 9
    assert load_config_from_env(prefix="OUR_").profiling_iters == 9
    monkeypatch.setenv("OUR_NUM_BLOKS", "9")
    with pytest.raises(ValidationError, match="OUR_NUM_BLOKS; did you mean OUR_NUM_BLOCKS"):
        load_config(env_prefix="OUR_")


def test_patterns_are_trimmed_and_named_by_their_position_when_they_are_wrong():
    assert OffloadConfig(include_patterns=[" layers.* ", "class:Linear"]).include_patterns == [
        "layers.*",
        "class:Linear",
    ]
    assert OffloadConfig(include_patterns=[], exclude_patterns=("head",)).exclude_patterns == ["head"]
    for entry in ["", "class:", "klass:A"]:
        assert "entry 1" in refused(include_patterns=["a", entry])


def test_a_strategy_is_an_object_with_compute_or_a_name():
    class Mine:
        def compute(self, layer_stats, memory_stats=None, max_gpu_mem_bytes=None):
            raise NotImplementedError

    mine = Mine()
    assert OffloadConfig(load_strategy=mine).load_strategy is mine
    assert copy.copy(OffloadConfig(load_strategy=mine)).load_strategy is mine
    assert OffloadConfig(load_strategy="GreedyStrategy").load_strategy == "GreedyStrategy"
    assert "method compute" in refused(load_strategy=3)
    assert "GreedyStrategy" in refused(load_strategy="Greedy")


def test_paths_and_numbers_of_numpy_are_taken():
    numpy = pytest.importorskip("numpy")
    config = OffloadConfig(
        profile_storage_dir=Path("a") / "b",
        num_blocks=numpy.int64(6),
        transfer_budget_scale=numpy.float32(0.5),
    )
    assert (config.profile_storage_dir, config.num_blocks, config.transfer_budget_scale) == ("a/b", 6, 0.5)
    assert "an object" in refused(num_blocks=object())


def test_copies_are_equal_and_independent():
    config = OffloadConfig(include_patterns=["a"], num_blocks=6)
    for made in [
        copy.copy(config),
        copy.deepcopy(config),
        config.model_copy(),
        pickle.loads(pickle.dumps(config)),
    ]:
        assert made == config and made.model_fields_set == {"include_patterns", "num_blocks"}
        made.include_patterns.append("b")
        made.num_blocks = 8
        assert config.include_patterns == ["a"] and config.num_blocks == 6
    assert config.model_copy(update={"num_blocks": 9}).num_blocks == 9
    assert config != OffloadConfig() and dict(config)["num_blocks"] == 6
    assert "num_blocks=6" in repr(config)


def test_an_assignment_is_checked_when_the_configuration_is_used():
    config = OffloadConfig()
    config.num_blocks = 2
    with pytest.raises(ValidationError, match="num_blocks"):
        config.checked()
    config.min_blocks = 2
    assert config.checked() == config
    with pytest.raises(AttributeError, match="num_bloks"):
        config.num_bloks = 2
    with pytest.raises(AttributeError, match="num_blocks"):
        del config.num_blocks


def test_nothing_is_said_about_a_configuration_that_is_right():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OffloadConfig(num_blocks=8, min_blocks=2, transfer_mode="raw_block_transfer", profile_mode="getter")


def test_importing_the_package_and_the_configuration_loads_no_torch():
    program = "import sys, flextensor, flextensor.config; print('torch' in sys.modules)"
    folder = str(Path(_native.__file__).parents[1])
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": folder},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(answer.stdout.lower()) is False
