//! Faults on demand: `SIMCUDA_FAULTS="cuMemCreate@37=2,cuMemHostRegister@*=304"`.
//!
//! A rule names an export, the call it hits (counted from 1; `N+` from the Nth on; `*` each) and the code returned
//! instead of doing the work. `FUNCTION@MARK.N=CODE` counts from the moment at which the program set the mark (`simcuda_set`), so that a call is hit whatever came
//! before; until then the rule hits nothing. With `others:BYTES` for the code the call does its work, and from then on other processes hold so much of each device. A program may also arm a fault while it runs (`simcuda_set`): the next call of an export, by
//! any thread or by the thread that armed it, is refused once.

use crate::journal::journal;
use crate::locks::lock;
use crate::memory::physical;
use crate::settings::{bytes, refuse, settings};
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
    /// Calls count from here; none = from the first one.
    mark: Option<String>,
    when: When,
    effect: Effect,
}

/// What comes of a call that a rule hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// It returns this code.
    Code(u32),
    /// It does its work; before, other processes take so many bytes of each device, or leave no more.
    Others(u64),
}

fn parse_effect(text: &str) -> Option<Effect> {
    match text.strip_prefix("others:") {
        Some(size) => bytes(size).map(Effect::Others),
        None => text.parse().ok().map(Effect::Code),
    }
}

fn parse_rule(text: &str) -> Option<Rule> {
    let (function, rest) = text.trim().split_once('@')?;
    let (call, code) = rest.split_once('=')?;
    let (mark, call) = match call.split_once('.') {
        Some((mark, call)) => (Some(mark.to_owned()), call),
        None => (None, call),
    };
    let when = match call.strip_suffix('+') {
        Some(first) => When::From(first.parse().ok()?),
        None if call == "*" => When::Each,
        None => When::Nth(call.parse().ok()?),
    };
    Some(Rule { function: function.to_owned(), mark, when, effect: parse_effect(code)? })
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
                        "FUNCTION@N=CODE, FUNCTION@N+=CODE, FUNCTION@*=CODE, each N also as MARK.N, each CODE also as others:BYTES, with commas",
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

/// Marks that the program has set: each with the calls that an export had had by then.
static MARKS: Mutex<Vec<(String, &'static str, u64)>> = Mutex::new(Vec::new());

/// The program sets a mark; `calls` are all exports with how often each was called so far.
pub(crate) fn mark(name: &str, calls: impl Iterator<Item = (&'static str, u64)>) {
    let mut marks = lock(&MARKS);
    marks.retain(|(known, ..)| known != name);
    let wanted = |function: &str| {
        rules().iter().any(|rule| rule.mark.as_deref() == Some(name) && names(&rule.function, function))
    };
    let calls = calls.filter(|(function, _)| wanted(function));
    marks.extend(calls.map(|(function, count)| (name.to_owned(), function, count)));
}

impl Rule {
    /// The number of a call as the rule counts; none before its mark.
    fn number(&self, function: &str, nth: u64) -> Option<u64> {
        let Some(mark) = &self.mark else { return Some(nth) };
        let marks = lock(&MARKS);
        let (.., before) = marks.iter().find(|(name, known, _)| name == mark && *known == function)?;
        nth.checked_sub(*before).filter(|&number| number > 0)
    }

    fn hits(&self, function: &str, nth: u64) -> bool {
        let hit = |number| match self.when {
            When::Each => true,
            When::Nth(n) => n == number,
            When::From(n) => number >= n,
        };
        names(&self.function, function) && self.number(function, nth).is_some_and(hit)
    }
}

/// The code that the `nth` call (from 1) of `function` must return instead of doing its work.
pub(crate) fn fault(function: &str, nth: u64) -> Option<u32> {
    if let Some(code) = take_armed(function) {
        return Some(code);
    }
    rules().iter().filter(|rule| rule.hits(function, nth)).find_map(|rule| match rule.effect {
        Effect::Code(code) => Some(code),
        Effect::Others(bytes) => {
            journal().faults_delivered.fetch_add(1, Ordering::Relaxed);
            physical::others_hold(bytes);
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::{Effect, MARKS, When, arm, fault, names, parse_rule};

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
    fn calls_count_from_the_mark_of_their_rule_and_not_before_it() {
        let once = parse_rule("cuMemMap@change.2=999").unwrap();
        let always = parse_rule("cuMemMap@change.2+=999").unwrap();
        assert!((0..100).all(|nth| !once.hits("cuMemMap", nth) && !always.hits("cuMemMap", nth)));
        crate::locks::lock(&MARKS).push(("change".into(), "cuMemMap", 40));
        let hit = |rule: &super::Rule| (0..50).filter(|&nth| rule.hits("cuMemMap", nth)).collect::<Vec<_>>();
        assert_eq!(hit(&once), [42]);
        assert_eq!(hit(&always), (42..50).collect::<Vec<_>>());
        assert!(!once.hits("cuMemUnmap", 42));
    }

    #[test]
    fn rules_name_a_function_a_call_and_a_code() {
        let rule = parse_rule("cuMemCreate@37=2").unwrap();
        assert_eq!((rule.function.as_str(), rule.when), ("cuMemCreate", When::Nth(37)));
        assert_eq!(rule.effect, Effect::Code(2));
        assert_eq!(parse_rule("cuMemMap@x.2=others:6MiB").unwrap().effect, Effect::Others(6 << 20));
        assert!(parse_rule("cuMemMap@2=others:six").is_none());
        assert_eq!(parse_rule("cuMemHostRegister_v2@*=304").unwrap().when, When::Each);
        assert_eq!(parse_rule("cuMemCreate@4+=2").unwrap().when, When::From(4));
        assert!(
            names("cuMemHostRegister", "cuMemHostRegister_v2") && !names("cuMemAlloc", "cuMemAllocPitch_v2")
        );
        assert_eq!(parse_rule("cuMemCreate@here.*=2").unwrap().mark.as_deref(), Some("here"));
        assert!(parse_rule("cuMemCreate=2").is_none());
        assert!(parse_rule("cuMemCreate@x=2").is_none());
    }
}
