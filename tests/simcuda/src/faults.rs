//! Faults on demand: `SIMCUDA_FAULTS="cuMemCreate@37=2,cuMemHostRegister@*=304"`.
//!
//! A rule names an export, the call it hits (counted from 1; `N+` from the Nth on; `*` each) and the code returned
//! instead of doing the work.

use crate::settings::{refuse, settings};
use std::sync::OnceLock;

#[derive(Debug, PartialEq, Eq)]
enum When {
    Each,
    Nth(u64),
    From(u64),
}

#[derive(Debug, PartialEq, Eq)]
struct Rule {
    function: String,
    when: When,
    code: u32,
}

fn parse_rule(text: &str) -> Option<Rule> {
    let (function, rest) = text.trim().split_once('@')?;
    let (call, code) = rest.split_once('=')?;
    let when = match call.strip_suffix('+') {
        Some(first) => When::From(first.parse().ok()?),
        None if call == "*" => When::Each,
        None => When::Nth(call.parse().ok()?),
    };
    Some(Rule { function: function.to_owned(), when, code: code.parse().ok()? })
}

fn rules() -> &'static [Rule] {
    static RULES: OnceLock<Vec<Rule>> = OnceLock::new();
    RULES.get_or_init(|| {
        let text = &settings().faults;
        text.split(',')
            .filter(|rule| !rule.trim().is_empty())
            .map(|rule| {
                parse_rule(rule).unwrap_or_else(|| {
                    refuse(
                        "SIMCUDA_FAULTS",
                        text,
                        "FUNCTION@N=CODE, FUNCTION@N+=CODE, FUNCTION@*=CODE, with commas",
                    )
                })
            })
            .collect()
    })
}

/// Whether a rule for `function` means the export `name`: itself or with an ABI or stream suffix.
fn names(function: &str, name: &str) -> bool {
    name.strip_prefix(function)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("_v") || rest.starts_with("_pt"))
}

/// The code that the `nth` call (from 1) of `function` must return instead of doing its work.
pub(crate) fn fault(function: &str, nth: u64) -> Option<u32> {
    let hit = rules().iter().find(|rule| {
        names(&rule.function, function)
            && match rule.when {
                When::Each => true,
                When::Nth(n) => n == nth,
                When::From(n) => nth >= n,
            }
    })?;
    Some(hit.code)
}

#[cfg(test)]
mod tests {
    use super::{When, names, parse_rule};

    #[test]
    fn rules_name_a_function_a_call_and_a_code() {
        let rule = parse_rule("cuMemCreate@37=2").unwrap();
        assert_eq!((rule.function.as_str(), rule.when, rule.code), ("cuMemCreate", When::Nth(37), 2));
        assert_eq!(parse_rule("cuMemHostRegister_v2@*=304").unwrap().when, When::Each);
        assert_eq!(parse_rule("cuMemCreate@4+=2").unwrap().when, When::From(4));
        assert!(
            names("cuMemHostRegister", "cuMemHostRegister_v2") && !names("cuMemAlloc", "cuMemAllocPitch_v2")
        );
        assert!(parse_rule("cuMemCreate=2").is_none());
        assert!(parse_rule("cuMemCreate@x=2").is_none());
    }
}
