//! Whether tables of which passes read single rows belong in host memory.
#![allow(clippy::unwrap_used, reason = "a test panics when something is missing, and may show its figures")]

mod models;

use flextensor_core::plan::{PlanRequest, Table, rows_pay};
use models::{PAGE, Work, llama};

/// Pages of the Llama's embedding, of which a prefill reads some 80 MB in 0.05 ms.
const TABLE: u64 = 250;

/// All but the embedding, with `works` as shapes and so many GiB.
fn others(works: &[Work], budget: u64) -> PlanRequest {
    let mut requests = works.iter().map(|&work| llama(work, Some(budget << 30)));
    let mut request = requests.next().unwrap();
    request.passes.extend(requests.flat_map(|request| request.passes));
    for (shape, pass) in (1..).zip(&mut request.passes) {
        pass.shape = shape;
    }
    let table = request.units.remove(0);
    request.passes.iter_mut().for_each(|pass| pass.uses.retain(|used| used.unit != table.id));
    request
}

/// What the answer is where each shape uses the table for so many milliseconds.
fn pays(request: &PlanRequest, use_ms: &[f64]) -> bool {
    rows_pay(request, &[Table { bytes: TABLE * PAGE, use_ms: use_ms.to_vec() }]).unwrap()
}

#[test]
fn tables_go_where_copies_are_waited_for_and_stay_where_they_are_hidden() {
    assert!(!pays(&others(&[Work::Prefill], 20), &[0.05]));
    assert!(pays(&others(&[Work::Decode], 20), &[0.005]));
    // 8 GiB are too few to hide the copies of a prefill; 16 hide them by the bound, but no ring of a plan does beside the table.
    assert!(pays(&others(&[Work::Prefill], 8), &[0.05]));
    assert!(pays(&others(&[Work::Prefill], 16), &[0.05]));
    assert!(pays(&others(&[Work::Prefill], 1), &[0.05]));
}

#[test]
fn the_gain_of_one_shape_counts_beside_the_loss_of_another() {
    assert!(pays(&others(&[Work::Prefill, Work::Decode], 20), &[0.05, 0.005]));
    assert!(!pays(&others(&[Work::Prefill, Work::Diffusion], 20), &[0.05, 0.05]));
}

#[test]
fn rows_that_cost_nothing_are_left_in_the_host() {
    assert!(pays(&others(&[Work::Prefill], 20), &[0.004]));
    assert!(pays(&others(&[Work::Prefill], 20), &[]));
}

#[test]
fn a_request_that_contradicts_itself_is_an_error() {
    let request = PlanRequest { page_bytes: 0, ..others(&[Work::Prefill], 20) };
    assert!(rows_pay(&request, &[]).is_err());
}
