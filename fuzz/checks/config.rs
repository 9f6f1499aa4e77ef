//! What must hold of every text that is given to the configuration: a typed value or one line that names the fault, and never a crash. Shared by the fuzz target and the
//! test that replays its corpus.

use flextensor_config::{Config, ConfigError, ConfigFile, changed, config_file, load_config, preload};

/// The first byte chooses the source; the rest is its text.
pub(crate) fn check(data: &[u8]) {
    let Some((&source, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    match source {
        b't' => file("given.toml", text),
        b'i' => file("given.ini", text),
        b'j' => file("given.json", text),
        b'y' => file("given.yaml", text),
        b'e' => variables(text),
        b'c' => while_running(text),
        _ => {}
    }
}

fn file(name: &str, text: &str) {
    let file = ConfigFile::new(name, text);
    judge(preload([], Some(&file)));
    judge(load_config(&[], [], Some(&file)));
}

/// A line each, as `NAME=VALUE`.
fn variables(text: &str) {
    let variables: Vec<(String, String)> = text
        .split('\n')
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    judge(preload(variables.clone(), None));
    judge(load_config(&[], variables.clone(), None));
    if let Err(error) = config_file(variables) {
        is_one_line(&error.to_string());
    }
}

fn while_running(json: &str) {
    let base = preload([], None).expect("the defaults are a configuration");
    judge(changed(&base, json));
}

fn judge(loaded: Result<Config, ConfigError>) {
    let config = match loaded {
        Ok(config) => config,
        Err(error) => return is_one_line(&error.to_string()),
    };
    config.warnings.iter().for_each(|warning| is_one_line(warning));
    config.selection().expect("loading has checked every pattern");
    for total in [0, 1, 80 << 30, u64::MAX] {
        let _ = (config.max_gpu_mem_for(0, total), config.gpu_limit_for(u32::MAX, total));
        let _ = config.host_mem_limit_for(total);
    }
    let _ = config.strategy_options();
    let json = config.to_json();
    serde_json::from_str::<serde_json::Value>(&json).expect("a configuration is one JSON object");
    // What was accepted once is accepted again, and is the same.
    let mut again = changed(&config, "{}").unwrap_or_else(|error| panic!("{error}: {json}"));
    (again.warnings, again.origins) = (config.warnings.clone(), config.origins.clone());
    assert_eq!(again, config);
}

/// A message is a line: it goes to stderr among others.
fn is_one_line(message: &str) {
    assert!(!message.is_empty() && !message.contains(['\n', '\r']), "{message:?}");
}
