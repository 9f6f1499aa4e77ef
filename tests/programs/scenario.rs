//! Small stories of one model of a few weights, by name, for tests of single rules. Prints `phase N`, `mismatches N` and what the story says; status 0
//! when every byte was right, 1 when one was not, 2 when a driver call failed.
//!
//! `scenario STORY`. The stage that all stories stand on is in `scenario/scene.rs`; stories are in `scenario/pages.rs` (what a weight's bytes are),
//! `scenario/captures.rs` (graphs), `scenario/escapes.rs` (addresses in copies), `scenario/freed.rs` (weights that go), `scenario/ended.rs` (streams, modules, contexts that end), `scenario/nodes.rs` (graphs built by hand), `scenario/numbers.rs` (numbers that look like addresses), `scenario/changes.rs` (other shapes, orders, models), `scenario/profile.rs` (profiles on request), `scenario/courses.rs` (models with counts and profiles of their own, options that change), `scenario/proofs.rs` (who is taken for a reader), `scenario/loading.rs` (models that do not fit), `scenario/pool.rs` (weights side by side in one allocation), `scenario/rows.rs` (a table of which single rows are read), `scenario/allocators.rs` (weights in other memory), `scenario/devices.rs` (several GPUs), `scenario/plugins.rs` (libraries that are opened late), `scenario/pressure.rs` (memory that runs short later), `scenario/process.rs` (threads, forks, exits), `scenario/endless.rs` (forwards and learning that do not end), `scenario/waits.rs` (who waits for what) and `scenario/reports.rs` (what users reported of others).

#[path = "scenario/allocators.rs"]
mod allocators;
#[path = "scenario/captures.rs"]
mod captures;
#[path = "scenario/changes.rs"]
mod changes;
#[path = "scenario/courses.rs"]
mod courses;
#[path = "scenario/devices.rs"]
mod devices;
#[path = "scenario/ended.rs"]
mod ended;
#[path = "scenario/endless.rs"]
mod endless;
#[path = "scenario/escapes.rs"]
mod escapes;
#[path = "scenario/freed.rs"]
mod freed;
#[path = "scenario/loading.rs"]
mod loading;
#[path = "scenario/nodes.rs"]
mod nodes;
#[path = "scenario/numbers.rs"]
mod numbers;
#[path = "scenario/pages.rs"]
mod pages;
#[path = "scenario/plugins.rs"]
mod plugins;
#[path = "scenario/pool.rs"]
mod pool;
#[path = "scenario/pressure.rs"]
mod pressure;
#[path = "scenario/process.rs"]
mod process;
#[path = "scenario/profile.rs"]
mod profile;
#[path = "scenario/proofs.rs"]
mod proofs;
#[path = "scenario/quiet.rs"]
mod quiet;
#[path = "scenario/reports.rs"]
mod reports;
#[path = "scenario/rows.rs"]
mod rows;
#[path = "scenario/scene.rs"]
mod scene;
#[path = "scenario/waits.rs"]
mod waits;

use harness::driver::Failure;

/// A story: wrong words that were found.
pub(crate) type Told = Result<u64, Failure>;

#[expect(clippy::print_stdout, reason = "a program speaks by its output")]
pub(crate) fn say(what: &str, value: u64) {
    println!("{what} {value}");
}

/// Who tells stories, by name.
const TELLERS: [fn(&str) -> Option<Told>; 23] = [
    pages::tell,
    captures::tell,
    escapes::tell,
    freed::tell,
    ended::tell,
    process::tell,
    nodes::tell,
    profile::tell,
    courses::tell,
    changes::tell,
    loading::tell,
    pressure::tell,
    proofs::tell,
    pool::tell,
    rows::tell,
    devices::tell,
    allocators::tell,
    plugins::tell,
    endless::tell,
    reports::tell,
    quiet::tell,
    numbers::tell,
    waits::tell,
];

#[expect(clippy::print_stderr, reason = "a program speaks by its output")]
fn main() {
    let story = std::env::args().nth(1).unwrap_or_default();
    let told = TELLERS.iter().find_map(|tell| tell(&story));
    match told.unwrap_or_else(|| panic!("no story {story:?}")) {
        Ok(wrong) => {
            say("mismatches", wrong);
            std::process::exit(i32::from(wrong != 0));
        }
        Err(failure) => {
            eprintln!("{failure}");
            std::process::exit(2);
        }
    }
}
