//! The fuzzer's corpus of profiles, replayed: what `fuzz/fuzz_targets/profile.rs` asks of arbitrary text holds of it.

#[path = "../../fuzz/checks/profile.rs"]
mod checks;

#[test]
fn every_profile_of_the_corpus_is_refused_in_a_line_or_used() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/profile");
    let mut replayed = 0;
    for entry in std::fs::read_dir(corpus).expect("the corpus is there") {
        checks::check(&std::fs::read(entry.expect("an entry").path()).expect("a file"));
        replayed += 1;
    }
    assert!(replayed >= 5, "{replayed} inputs");
}
