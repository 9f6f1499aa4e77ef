//! Weights that make room at once, for an allocation that has none: the plan for less memory is made, prepared and put in force by the thread that allocates.
//! Who asks for that, and when, is `pressure`'s matter.

use std::collections::BTreeSet;

use super::super::arena::PAGE;
use super::super::rows::waiting;
use super::super::world::world;
use super::super::{early, passes, switch};
use super::in_force::{self, Carried};
use super::placing::Thinking;
use super::prepared;
use super::standing::{Aim, asked};
use super::ways::{Way, ways};
use super::worth::Why;

/// Weights go to the ring until `wanted` bytes of GPU memory have become free, or at least `least`; returns how many have. One switch-over at a time is the
/// caller's promise; it is not inside the gate, and holds no other lock.
///
/// # Errors
/// A sentence; everything is as it was then.
pub(in super::super) fn give_way(device: i32, least: u64, wanted: u64) -> Result<u64, String> {
    alone(device, wanted, least, |wanted, least| match give(device, wanted, wanted) {
        Err(_) if least < wanted => give(device, least, least),
        given => given,
    })
}

/// As [`give_way`], for as much of `wanted` as can become free, be it little.
///
/// # Errors
/// A sentence where nothing can.
pub(in super::super) fn give_what_can(device: i32, wanted: u64) -> Result<u64, String> {
    alone(device, wanted, PAGE.min(wanted), |wanted, least| give(device, wanted, least))
}

/// Tables of rows that wait on the GPU go first: they need no ring, and nothing else moves.
fn alone(
    device: i32,
    wanted: u64,
    least: u64,
    give: impl FnOnce(u64, u64) -> Result<u64, String>,
) -> Result<u64, String> {
    if early::is_streaming(device) {
        return Err("weights that are learnt are streamed already".to_owned());
    }
    let _only = Thinking::wait();
    prepared::discard(device);
    let freed = tables_go(device);
    if freed >= wanted {
        return Ok(freed);
    }
    match give(wanted - freed, least.saturating_sub(freed).max(PAGE)) {
        Ok(given) => Ok(freed + given),
        Err(_) if freed > 0 && freed >= least => Ok(freed),
        Err(why) => Err(why),
    }
}

/// Bytes that tables of rows have freed by going to host memory.
fn tables_go(device: i32) -> u64 {
    // Most programs have none, and what a plan is asked for takes long to put together.
    if !waiting::any(device) {
        return 0;
    }
    let nothing = BTreeSet::new();
    let Some(asked) = asked(device, Aim::Less { bytes: 0, leave: &nothing }) else { return 0 };
    let waiting = waiting::on(device, asked.context, &asked.request);
    waiting.and_then(|waiting| passes::in_context(asked.context, || waiting.go())).unwrap_or(0)
}

/// By a plan for `bytes` less, if that frees at least `least`.
fn give(device: i32, bytes: u64, least: u64) -> Result<u64, String> {
    let leave = passes::read_through_pointers(&world());
    let asked =
        asked(device, Aim::Less { bytes, leave: &leave }).ok_or("no weight that may move is placed yet")?;
    let ways = ways(&asked, Why::Pressure)?;
    let freed = |way: &Way| asked.peak().saturating_sub(way.plan.peak_bytes);
    let most = ways.iter().map(freed).max().unwrap_or(0);
    let Some(Way { plan: made, targets }) = ways.into_iter().find(|way| freed(way) >= least) else {
        return Err(format!(
            "weights that may move can free {} MiB of {}",
            most >> 20,
            bytes.div_ceil(1 << 20)
        ));
    };
    if targets.is_empty() {
        return Err("no weight would move".to_owned());
    }
    let context = asked.context;
    let carried = passes::in_context(context, || {
        let prepared = prepared::make_ready(asked, made, targets, Why::Pressure)?;
        Ok::<_, String>(match in_force::carry_out(prepared) {
            Carried::Busy(prepared) => {
                prepared::give_up(*prepared);
                Carried::Refused(
                    "a forward reads weights through pointers, or a graph is captured".to_owned(),
                )
            }
            carried => carried,
        })
    });
    match carried.ok_or("the context of the weights cannot be had")?? {
        Carried::Out(done) => {
            let (freed, ring_is_left) = (done.freed(), done.ring_is_left());
            done.remember();
            if !ring_is_left {
                switch::let_ring_go(device);
            }
            Ok(freed)
        }
        Carried::Refused(why) => Err(why),
        Carried::Busy(_) => Err("not now".to_owned()),
    }
}
