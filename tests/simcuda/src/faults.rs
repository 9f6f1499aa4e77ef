//! Faults on demand: `SIMCUDA_FAULTS="cuMemCreate@37=2,cuMemHostRegister@*=304"`.
//!
//! A rule names an export, the call it hits (counted from 1; `N+` from the Nth on; `*` each) and the code returned
//! instead of doing the work. A program may also arm a fault while it runs (`simcuda_set`): the next call of an export, by
//! any thread or by the thread that armed it, is refused once.

use crate::locks::lock;
use crate::settings::{refuse, settings};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::ThreadId;

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

/// A fault that waits for the next call of its function.
struct Armed {
    function: String,
    code: u32,
    /// Only this thread's call is meant; none = anybody's.
    thread: Option<ThreadId>,
}

static ARMED: Mutex<Vec<Armed>> = Mutex::new(Vec::new());
/// Length of `ARMED`, so that calls need not take its lock while nothing is armed.
static ANY_ARMED: AtomicUsize = AtomicUsize::new(0);

/// The next call of `function` returns `code`; 0 takes back what was armed for it. `here`: only a call by this thread is meant.
pub(crate) fn arm(function: &str, code: u32, here: bool) {
    let mut armed = lock(&ARMED);
    armed.retain(|one| one.function != function);
    if code != 0 {
        let thread = here.then(|| std::thread::current().id());
        armed.push(Armed { function: function.to_owned(), code, thread });
    }
    ANY_ARMED.store(armed.len(), Ordering::Release);
}

fn take_armed(function: &str) -> Option<u32> {
    if ANY_ARMED.load(Ordering::Acquire) == 0 {
        return None;
    }
    let mut armed = lock(&ARMED);
    let me = std::thread::current().id();
    let meant = |one: &Armed| names(&one.function, function) && one.thread.is_none_or(|thread| thread == me);
    let at = armed.iter().position(meant)?;
    let one = armed.swap_remove(at);
    ANY_ARMED.store(armed.len(), Ordering::Release);
    Some(one.code)
}

/// The code that the `nth` call (from 1) of `function` must return instead of doing its work.
pub(crate) fn fault(function: &str, nth: u64) -> Option<u32> {
    if let Some(code) = take_armed(function) {
        return Some(code);
    }
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
    use super::{When, arm, fault, names, parse_rule};

    #[test]
    fn an_armed_fault_is_met_once_and_only_by_those_who_are_meant() {
        arm("cuMemCreate", 2, true);
        let elsewhere = std::thread::spawn(|| fault("cuMemCreate", 1)).join().unwrap();
        assert_eq!(elsewhere, None);
        assert_eq!(
            (fault("cuMemMap", 1), fault("cuMemCreate", 1), fault("cuMemCreate", 2)),
            (None, Some(2), None)
        );
        arm("cuMemMap", 999, false);
        assert_eq!(std::thread::spawn(|| fault("cuMemMap", 1)).join().unwrap(), Some(999));
        arm("cuMemMap", 999, false);
        arm("cuMemMap", 0, false);
        assert_eq!(fault("cuMemMap", 2), None);
    }

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
