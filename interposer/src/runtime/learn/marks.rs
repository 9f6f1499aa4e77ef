//! Events that passes are marked with: taken again and again, and of those that nobody needs now no more kept than a pass of a large model takes. What a mark
//! stands for is `pass`'s matter.

use std::collections::BTreeMap;

use crate::ffi::context::Context;
use crate::ffi::event::{self, Event};
use crate::ffi::stream::Stream;

/// Marks that are kept in each context for later passes.
const MOST_SPARE: usize = 1024;

/// Marks for later passes, by context.
#[derive(Default)]
pub(super) struct Marks {
    spare: BTreeMap<Context, Vec<Event>>,
}

impl Marks {
    /// A mark behind what is on the stream so far; none where the driver makes none. `context` is current.
    pub(super) fn behind(&mut self, context: Context, stream: Stream) -> Option<Event> {
        let event = match self.spare.get_mut(&context).and_then(Vec::pop) {
            Some(event) => event,
            None => event::create(true).ok()?,
        };
        let recorded = event::record(event, stream).is_ok();
        if !recorded {
            self.give_back(context, [event]);
        }
        recorded.then_some(event)
    }

    /// Nobody reads these any more.
    pub(super) fn give_back(&mut self, context: Context, marks: impl IntoIterator<Item = Event>) {
        for mark in marks {
            let spare = self.spare.entry(context).or_default();
            if spare.len() < MOST_SPARE {
                spare.push(mark);
            } else {
                let _ = event::destroy(mark);
            }
        }
    }

    /// The context is gone, and all marks in it.
    pub(super) fn forget_context(&mut self, context: Context) {
        self.spare.remove(&context);
    }
}
