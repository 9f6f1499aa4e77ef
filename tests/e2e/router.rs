//! The router of `cuGetProcAddress` and `dlsym` with arbitrary names, versions and flags: the corpus that the fuzzer starts from (docs/testing.md), replayed under the preloaded library.

use super::loader::source;
use super::told::said;
use harness::Run;

#[test]
fn whatever_is_looked_up_is_the_drivers_answer_or_ours_of_the_same_name() {
    let run = Run::program("router").args([source("../fuzz/corpus/router")]).preload();
    let outcome = run.start();
    outcome.assert_success();
    assert!(said(&outcome, "asked") >= 18, "{}", outcome.describe());
    assert!(said(&outcome, "replaced") >= 6, "{}", outcome.describe());
}
