//! The fuzzer's corpus of configurations, replayed: what `fuzz/fuzz_targets/config.rs` asks of arbitrary text holds of it.

#[path = "../../fuzz/checks/config.rs"]
mod checks;

#[test]
fn every_text_of_the_corpus_is_a_configuration_or_an_error_of_one_line() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/config");
    let mut replayed = 0;
    for entry in std::fs::read_dir(corpus).expect("the corpus is there") {
        checks::check(&std::fs::read(entry.expect("an entry").path()).expect("a file"));
        replayed += 1;
    }
    assert!(replayed >= 9, "{replayed} inputs");
}
