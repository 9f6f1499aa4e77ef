//! Tests of `load`: order of sources, who is on, rules between options, and what is refused.

use super::*;
use crate::choices::{CheckMode, LogLevel, MemoryMode};
use crate::row::Support;
use crate::size::{Amount, Budget};

const GIB: u64 = 1 << 30;

fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn with(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
    preload(variables(pairs), None)
}

fn toml(text: &str) -> ConfigFile {
    ConfigFile::new("flextensor.toml", text)
}

fn keyword(key: &str, raw: impl Into<Raw>) -> Vec<(String, Raw)> {
    vec![(key.to_owned(), raw.into())]
}

fn refuse(pairs: &[(&str, &str)]) -> String {
    with(pairs).unwrap_err().to_string()
}

#[test]
fn defaults_are_those_of_the_table() {
    let config = with(&[]).unwrap();
    assert!(config.enabled && config.pinned_memory && !config.skip_discovery);
    assert_eq!((config.discovery_iters, config.profiling_iters, config.gpu_device), (1, 10, 0));
    assert_eq!((config.include_patterns.clone(), config.exclude_patterns.len()), (None, 0));
    assert_eq!(
        (config.mode, config.log, config.managed_min_bytes),
        (MemoryMode::Auto, LogLevel::Notice, 10 << 20)
    );
    assert_eq!((config.max_gpu_mem.clone(), config.max_gpu_mem_for(0, 80 * GIB)), (None, None));
    assert!(config.warnings.is_empty() && config.origins.values().all(|origin| *origin == Origin::Default));
}

#[test]
fn every_row_of_the_table_is_a_field_and_every_field_a_row() {
    let json: Value = serde_json::from_str(&with(&[]).unwrap().to_json()).unwrap();
    let mut fields: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    fields.retain(|field| !["origins", "warnings"].contains(field));
    let mut keys: Vec<&str> = options::all().map(|row| row.key).collect();
    keys.sort_unstable();
    assert_eq!(fields, keys);
}

#[test]
fn a_variable_wins_over_the_file_and_the_file_over_the_default() {
    let file = toml("profiling_iters = 6\ndiscovery_iters = 2\n");
    let config = preload(variables(&[("FT_PROFILING_ITERS", "8")]), Some(&file)).unwrap();
    assert_eq!((config.profiling_iters, config.discovery_iters), (8, 2));
    assert_eq!(config.origins["profiling_iters"].to_string(), "FT_PROFILING_ITERS");
    assert_eq!(config.origins["discovery_iters"].to_string(), "flextensor.toml:2");
    assert_eq!(config.origins["log"].to_string(), "default");
}

#[test]
fn a_keyword_wins_over_a_variable() {
    let file = toml("profiling_iters = 6\n");
    let environment = variables(&[("FT_PROFILING_ITERS", "8")]);
    assert_eq!(load_config(&[], environment.clone(), Some(&file)).unwrap().profiling_iters, 8);
    assert_eq!(
        load_config(&keyword("profiling_iters", 5), environment, Some(&file)).unwrap().profiling_iters,
        5
    );
    assert_eq!(load_config(&[], [], Some(&file)).unwrap().profiling_iters, 6);
}

#[test]
fn being_preloaded_is_consent() {
    assert!(with(&[("FT_DISCOVERY_ITERS", "2")]).unwrap().enabled);
    assert!(!with(&[("FT_ENABLED", "0")]).unwrap().enabled);
    assert!(!preload([], Some(&toml("enabled = false"))).unwrap().enabled);
    assert!(preload(variables(&[("FT_ENABLED", "on")]), Some(&toml("enabled = false"))).unwrap().enabled);
}

#[test]
fn switched_off_means_that_nothing_else_is_looked_at() {
    let off = [
        ("FT_ENABLED", "off"),
        ("FT_NONSENSE", "1"),
        ("FT_LOG", "x"),
        ("FT_CONFIG_FILE", "/nonexistent/a.toml"),
    ];
    let config = load_preload_with(variables(&off)).unwrap();
    assert!(!config.enabled && config.origins["enabled"] == Origin::Variable("FT_ENABLED".to_owned()));
    assert!(!preload(variables(&off), Some(&toml("broken ="))).unwrap().enabled);
    assert!(refuse(&[("FT_ENABLED", "maybe")]).starts_with("FT_ENABLED: enabled = \"maybe\" is not allowed"));
}

#[test]
#[cfg(unix)]
fn a_variable_of_ours_that_is_no_text_is_refused_unless_switched_off() {
    use std::os::unix::ffi::OsStringExt;
    let raw = |off: &str| {
        let bad = std::ffi::OsString::from_vec(vec![0xff]);
        [("FT_ENABLED".into(), off.into()), ("FT_REPORT".into(), bad.clone()), ("OTHER".into(), bad)]
    };
    assert_eq!(texts(raw("1")).unwrap_err().to_string(), "environment variable FT_REPORT is not valid UTF-8");
    assert_eq!(texts(raw("0")).unwrap(), variables(&[("FT_ENABLED", "0")]));
}

#[test]
fn in_the_python_interface_variables_alone_do_not_switch_on() {
    let on = |environment: &[(&str, &str)], file: Option<&ConfigFile>, keywords: &[(String, Raw)]| {
        load_config(keywords, variables(environment), file).unwrap().enabled
    };
    assert!(!on(&[], None, &[]));
    assert!(!on(&[("FT_LOG", "info")], None, &[]));
    assert!(on(&[("FT_ENABLED", "1")], None, &[]));
    assert!(on(&[], Some(&toml("")), &[]));
    assert!(!on(&[], Some(&toml("enabled = false")), &[]));
    assert!(on(&[], None, &keyword("enabled", true)));
    assert!(from_keywords(&[]).unwrap().enabled);
}

#[test]
fn unset_patterns_are_automatic_when_preloaded_and_a_star_in_the_python_interface() {
    let star = Some(vec!["*".to_owned()]);
    assert!(with(&[]).unwrap().selection().unwrap().is_automatic());
    assert_eq!(with(&[("FT_INCLUDE_PATTERNS", "*")]).unwrap().include_patterns, star);
    assert_eq!(from_keywords(&[]).unwrap().include_patterns, star);
}

#[test]
fn unknown_names_in_a_file_or_keyword_warn_with_a_suggestion() {
    let config =
        preload([], Some(&toml("log = \"info\"\nnum_bloks = 6\nzzzz = 1\nwarmup_iters = 3\n"))).unwrap();
    assert_eq!(
        config.warnings,
        [
            "flextensor.toml:2: unknown option num_bloks is ignored; did you mean num_blocks?",
            "flextensor.toml:4: option warmup_iters was removed in 0.4.0 and is ignored",
            "flextensor.toml:3: unknown option zzzz is ignored",
        ]
    );
    let config = from_keywords(&keyword("num_bloks", 6)).unwrap();
    assert_eq!(config.warnings, ["keyword: unknown option num_bloks is ignored; did you mean num_blocks?"]);
}

#[test]
fn a_removed_keyword_is_refused_with_its_version() {
    let message = from_keywords(&keyword("release_tensors", true)).unwrap_err().to_string();
    assert_eq!(message, "option release_tensors was removed in 0.2.0 and is not allowed any more");
    let config = with(&[("FT_WARMUP_ITERS", "3")]).unwrap();
    assert_eq!((config.discovery_iters, config.warnings.len()), (1, 1));
}

#[test]
fn a_bad_value_is_named_with_its_place_and_what_is_allowed() {
    let message = preload([], Some(&toml("\nmax_gpu_mem = \"lots\"\n"))).unwrap_err().to_string();
    assert!(
        message.starts_with("flextensor.toml:2: max_gpu_mem = \"lots\" is not allowed; allowed: bytes"),
        "{message}"
    );
    assert!(refuse(&[("FT_NUM_BLOCKS", "x")]).starts_with("FT_NUM_BLOCKS: num_blocks = \"x\""));
    let message = from_keywords(&keyword("profiling_iters", -1)).unwrap_err().to_string();
    assert_eq!(message, "keyword: profiling_iters = -1 is not allowed; allowed: a whole number, 0 or more");
    assert!(refuse(&[("FT_INCLUDE_PATTERNS", "a,class:")]).contains("entry 1"));
}

#[test]
fn a_file_can_hold_lists_numbers_and_none() {
    let json =
        r#"{"max_gpu_mem": null, "include_patterns": ["layers.*", "head"], "max_gpu_mem_fraction": 0.5}"#;
    let config = preload([], Some(&ConfigFile::new("a.json", json))).unwrap();
    assert_eq!(config.include_patterns, Some(vec!["layers.*".to_owned(), "head".to_owned()]));
    assert_eq!(config.max_gpu_mem_for(3, 80 * GIB), Some(40 * GIB));
    let ini =
        ConfigFile::new("a.conf", "[flextensor]\nexclude_patterns = head, *.norm\nmax_gpu_mem = 24 GB\n");
    let config = preload([], Some(&ini)).unwrap();
    assert_eq!(config.exclude_patterns, ["head", "*.norm"]);
    assert_eq!(config.max_gpu_mem, Some(Budget::Each(Amount::Bytes(24_000_000_000))));
}

#[test]
fn a_budget_is_bytes_a_percentage_or_one_for_each_gpu() {
    let bytes =
        |text: &str, device| with(&[("FT_MAX_GPU_MEM", text)]).unwrap().max_gpu_mem_for(device, 100 * GIB);
    assert_eq!(bytes("8GiB", 0), Some(8 * GIB));
    assert_eq!(bytes("60%", 1), Some(60 * GIB));
    assert_eq!(bytes("1048576", 0), Some(1 << 20));
    assert_eq!((bytes("0:8GiB,1:16GiB", 1), bytes("0:8GiB,1:16GiB", 2)), (Some(16 * GIB), None));
    let fraction = with(&[("FT_MAX_GPU_MEM_FRACTION", "0.25")]).unwrap();
    assert_eq!(fraction.max_gpu_mem_for(0, 100 * GIB), Some(25 * GIB));
    let limited = with(&[("FT_HOST_MEM_LIMIT", "50%")]).unwrap();
    assert_eq!(limited.host_mem_limit_for(64 * GIB), Some(32 * GIB));
}

#[test]
fn two_budgets_must_say_the_same() {
    assert!(with(&[("FT_MAX_GPU_MEM", "70%"), ("FT_MAX_GPU_MEM_FRACTION", "0.7")]).is_ok());
    let message = refuse(&[("FT_MAX_GPU_MEM", "8GiB"), ("FT_MAX_GPU_MEM_FRACTION", "0.7")]);
    assert!(
        message.starts_with("FT_MAX_GPU_MEM: max_gpu_mem = \"8GiB\"") && message.contains("0.7"),
        "{message}"
    );
    let file = toml("max_gpu_mem_fraction = 0.7\n");
    assert!(preload(variables(&[("FT_MAX_GPU_MEM", "8GiB")]), Some(&file)).is_err());
    let none = variables(&[("FT_MAX_GPU_MEM", "8GiB"), ("FT_MAX_GPU_MEM_FRACTION", "none")]);
    assert_eq!(preload(none, Some(&file)).unwrap().max_gpu_mem_for(0, 80 * GIB), Some(8 * GIB));
}

#[test]
fn latency_and_fit_mode_take_no_budget() {
    for (word, mode) in [("latency", MemoryMode::Latency), ("fit", MemoryMode::Fit)] {
        assert_eq!(with(&[("FT_MODE", word)]).unwrap().mode, mode);
        let message = refuse(&[("FT_MODE", word), ("FT_MAX_GPU_MEM", "8GiB")]);
        assert!(message.contains(&format!("{word} means no budget, but max_gpu_mem is set")), "{message}");
    }
}

#[test]
fn the_limit_of_the_process_is_taken_for_each_gpu_like_a_budget() {
    let limit = |text: &str| with(&[("FT_GPU_LIMIT", text)]).unwrap();
    assert_eq!(limit("8GiB").gpu_limit_for(3, 80 * GIB), Some(8 * GIB));
    assert_eq!(limit("50%").gpu_limit_for(0, 80 * GIB), Some(40 * GIB));
    let each = limit("0:8GiB,1:25%");
    assert_eq!(
        [0, 1, 2].map(|device| each.gpu_limit_for(device, 80 * GIB)),
        [Some(8 * GIB), Some(20 * GIB), None]
    );
    assert_eq!(with(&[]).unwrap().gpu_limit_for(0, 80 * GIB), None);
}

#[test]
fn rules_between_options_name_the_one_that_was_set() {
    let message = refuse(&[("FT_NUM_BLOCKS", "2")]);
    assert!(
        message.starts_with("FT_NUM_BLOCKS: num_blocks = 2") && message.contains("min_blocks is 4"),
        "{message}"
    );
    assert!(refuse(&[("FT_MIN_BLOCKS", "5")]).starts_with("FT_MIN_BLOCKS: min_blocks = 5"));
    assert!(refuse(&[("FT_PROFILE_MODE", "torch_function")]).contains("transfer_mode must be strategy"));
    for pair in [("FT_OFFLOAD_TIMING", "eager"), ("FT_EXTERNAL_COMPILE", "1")] {
        let message = refuse(&[("FT_TRANSFER_MODE", "strategy"), pair]);
        assert!(message.starts_with(pair.0) && message.contains("transfer_mode must be alloc"), "{message}");
    }
    for namespace in [None, Some(("FT_SHM_NAMESPACE", "  "))] {
        let mut pairs = vec![("FT_SHM_ENABLED", "1")];
        pairs.extend(namespace);
        assert!(refuse(&pairs).contains("shm_namespace must be set"));
    }
}

#[test]
fn values_that_fit_together_pass_the_rules() {
    let passes =
        |pairs: &[(&str, &str)]| matches!(with(pairs), Ok(_) | Err(ConfigError::NotSupportedYet { .. }));
    assert!(passes(&[("FT_NUM_BLOCKS", "2"), ("FT_MIN_BLOCKS", "2")]));
    assert!(passes(&[("FT_PROFILE_MODE", "torch_function"), ("FT_TRANSFER_MODE", "strategy")]));
    assert!(passes(&[("FT_OFFLOAD_TIMING", "eager"), ("FT_TRANSFER_MODE", "raw_block_transfer")]));
    assert!(passes(&[("FT_SHM_ENABLED", "1"), ("FT_SHM_NAMESPACE", "run")]));
}

#[test]
fn check_is_a_switch_that_knows_one_word_more() {
    let check = |value| with(&[("FT_CHECK", value)]).unwrap().check;
    assert_eq!(with(&[]).unwrap().check, CheckMode::Off);
    assert_eq!([check("1"), check("yes"), check("on")], [CheckMode::On; 3]);
    assert_eq!([check("0"), check("false"), check("off")], [CheckMode::Off; 3]);
    assert_eq!(check("abort"), CheckMode::Abort);
    let message = refuse(&[("FT_CHECK", "always")]);
    assert!(message.contains("off or on (also 0/1, false/true, no/yes, n/y), or abort"), "{message}");
    let file = preload([], Some(&toml("check = true\n"))).unwrap();
    assert_eq!(file.check, CheckMode::On);
}

#[test]
fn an_option_without_effect_is_refused_unless_it_is_at_its_default() {
    for row in options::all().filter(|row| matches!(row.support, Support::Later(_))) {
        let text = row.default.unwrap_or("none");
        assert!(with(&[(&row.env_name(), text)]).is_ok(), "{} = {text}", row.key);
    }
    let message = refuse(&[("FT_SHM_ENABLED", "1"), ("FT_SHM_NAMESPACE", "run")]);
    assert!(
        message.starts_with("FT_SHM_ENABLED: shm_enabled = true is not supported yet; it waits for sessions"),
        "{message}"
    );
    assert!(refuse(&[("FT_PIECEWISE_PREFETCH", "error")]).contains("is not supported yet"));
}

#[test]
fn what_only_the_python_interface_does_is_taken_with_a_line_by_the_library() {
    let config = with(&[("FT_TRANSFER_MODE", "raw_block_transfer")]).unwrap();
    assert_eq!(
        config.warnings,
        ["FT_TRANSFER_MODE: transfer_mode has no effect outside the Python interface"]
    );
    let config = from_keywords(&keyword("transfer_mode", "raw_block_transfer")).unwrap();
    assert!(config.warnings.is_empty());
}

#[test]
fn the_python_interface_takes_what_programs_set_before_it_has_an_effect() {
    let piecewise = ("piecewise_prefetch", Raw::Text("error".to_owned()));
    for (key, raw) in [piecewise, ("shm_wait_timeout", Raw::Float(2.0))] {
        assert!(from_keywords(&keyword(key, raw)).is_ok(), "{key}");
    }
    assert_eq!(from_keywords(&keyword("check", true)).unwrap().check, CheckMode::On);
    assert!(from_keywords(&keyword("num_blocks", 8)).unwrap().warnings.is_empty());
}

#[test]
fn a_running_program_changes_what_it_names_and_nothing_else() {
    let base = with(&[("FT_MAX_GPU_MEM", "8GiB"), ("FT_LOG", "info")]).unwrap();
    let now =
        changed(&base, r#"{"max_gpu_mem": "4GiB", "profiling_iters": 3, "pinned_memory": false}"#).unwrap();
    assert_eq!((now.max_gpu_mem_for(0, 80 * GIB), now.profiling_iters), (Some(4 * GIB), 3));
    assert_eq!((now.log, now.include_patterns.clone()), (LogLevel::Info, None));
    assert_eq!(now.origins["max_gpu_mem"], Origin::Keyword);
    assert_eq!(now.origins["log"], Origin::Variable("FT_LOG".to_owned()));
    assert_eq!(changed(&base, "{}").unwrap(), base);
    assert!(changed(&base, r#"{"num_blocks": 1}"#).is_err() && changed(&base, "[").is_err());
}

#[test]
fn a_strategy_by_name_takes_the_options_that_were_set() {
    let config = with(&[("FT_LOAD_STRATEGY", "GreedyStrategy"), ("FT_NUM_BLOCKS", "6")]).unwrap();
    assert_eq!(config.load_strategy.as_deref(), Some("GreedyStrategy"));
    assert_eq!(config.strategy_options(), [("n_blocks", 6.0)]);
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let all = [("FT_TRANSFER_BUDGET_SCALE", "0.5"), ("FT_NUM_BLOCKS", "6"), ("FT_MIN_BLOCKS", "2")];
    let options = with(&all).unwrap().strategy_options();
    assert_eq!(options, [("scale", 0.5), ("n_blocks", 6.0), ("min_blocks", 2.0)]);
    assert!(refuse(&[("FT_LOAD_STRATEGY", "Greedy")]).contains("KnapsackBlockStrategy"));
}

#[test]
fn options_of_strategies_without_a_strategy_are_said_to_have_no_effect() {
    let config = with(&[("FT_MIN_BLOCKS", "2")]).unwrap();
    assert_eq!(
        config.warnings,
        ["FT_MIN_BLOCKS: min_blocks has no effect without load_strategy: our planner chooses by itself"]
    );
}

#[test]
fn the_file_that_the_variable_names_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    std::fs::write(&path, "max_gpu_mem = \"8GiB\"\nreport = \"run.json\"\n").unwrap();
    let named =
        |path: &std::path::Path| load_preload_with(variables(&[("FT_CONFIG_FILE", path.to_str().unwrap())]));
    let config = named(&path).unwrap();
    assert_eq!(config.report, Some("run.json".into()));
    assert_eq!(config.origins["report"], Origin::File { path, line: Some(2) });
    let message = named(&folder.path().join("missing.toml")).unwrap_err().to_string();
    assert!(
        message.starts_with("cannot read configuration file") && message.contains("missing.toml"),
        "{message}"
    );
}

#[test]
fn json_holds_values_origins_and_warnings() {
    let config = with(&[("FT_MAX_GPU_MEM", "60%"), ("FT_WARMUP_ITERS", "3")]).unwrap();
    let json: Value = serde_json::from_str(&config.to_json()).unwrap();
    assert_eq!(json["max_gpu_mem"], "60%");
    assert_eq!(json["managed_min_bytes"], 10 << 20);
    assert_eq!(json["log"], "notice");
    assert_eq!(json["include_patterns"], Value::Null);
    assert_eq!(json["origins"]["max_gpu_mem"], "FT_MAX_GPU_MEM");
    assert_eq!(json["warnings"].as_array().unwrap().len(), 1);
}

#[test]
fn the_example_file_is_a_valid_configuration() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/flextensor.toml");
    let config = preload([], Some(&ConfigFile::read(&path).unwrap())).unwrap();
    assert!(config.warnings.is_empty() && config.max_gpu_mem.is_some());
}

#[test]
fn messages_are_single_lines_whatever_they_name() {
    let messages = [
        preload([("FT_\nMAX".to_owned(), "1".to_owned())], None).unwrap_err().to_string(),
        preload([("FT_MAX_GPU_MEM".to_owned(), "a\nb".to_owned())], None).unwrap_err().to_string(),
        preload([], Some(&ConfigFile::new("a\nb.toml", "enabled = 3"))).unwrap_err().to_string(),
        preload([], Some(&ConfigFile::new("a.toml", "\"b\\nc\" = {}"))).unwrap_err().to_string(),
        preload([], Some(&ConfigFile::new("a.json", r#"{"b\nc": 1}"#))).unwrap().warnings.concat(),
        preload([], Some(&ConfigFile::new("a.json", r#"{"include_patterns": "k\nl:a"}"#)))
            .unwrap_err()
            .to_string(),
    ];
    for message in messages {
        assert!(!message.contains(char::is_control) && message.contains("\\n"), "{message:?}");
    }
}
