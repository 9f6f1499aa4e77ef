//! Weights that make room at once, for an allocation that has none: the plan for less memory is made, prepared and put in force by the thread that allocates.
//! Who asks for that, and when, is `pressure`'s matter.

use flextensor_core::plan::Plan;

use super::super::arena::PAGE;
use super::super::world::world;
use super::super::{early, passes, switch};
use super::in_force::{self, Carried};
use super::placing::Thinking;
use super::prepared;
use super::standing::{Aim, asked};
use super::ways::ways;
use super::worth::Why;

/// Weights go to the ring until `wanted` bytes of GPU memory have become free, or at least `least`; returns how many have. One switch-over at a time is the
/// caller's promise; it is not inside the gate, and holds no other lock.
///
/// # Errors
/// A sentence; everything is as it was then.
pub(in super::super) fn give_way(device: i32, least: u64, wanted: u64) -> Result<u64, String> {
    alone(device, || match give(device, wanted, wanted) {
        Err(_) if least < wanted => give(device, least, least),
        given => given,
    })
}

/// As [`give_way`], for as much of `wanted` as can become free, be it little.
///
/// # Errors
/// A sentence where nothing can.
pub(in super::super) fn give_what_can(device: i32, wanted: u64) -> Result<u64, String> {
    alone(device, || give(device, wanted, PAGE.min(wanted)))
}

fn alone(device: i32, give: impl FnOnce() -> Result<u64, String>) -> Result<u64, String> {
    if early::is_streaming(device) {
        return Err("weights that are learnt are streamed already".to_owned());
    }
    let _only = Thinking::wait();
    prepared::discard(device);
    give()
}

/// By a plan for `bytes` less, if that frees at least `least`.
fn give(device: i32, bytes: u64, least: u64) -> Result<u64, String> {
    let leave = passes::read_through_pointers(&world());
    let asked =
        asked(device, Aim::Less { bytes, leave: &leave }).ok_or("no weight that may move is placed yet")?;
    let ways = ways(&asked)?;
    let freed = |made: &Plan| asked.peak().saturating_sub(made.peak_bytes);
    let most = ways.iter().map(|(made, _)| freed(made)).max().unwrap_or(0);
    let Some((made, targets)) = ways.into_iter().find(|(made, _)| freed(made) >= least) else {
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
