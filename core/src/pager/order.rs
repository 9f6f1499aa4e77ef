//! The learnt order of streamed uses (rule 9): where the program is, and how far prefetch has run ahead of it.

use crate::units::ModelId;

/// How far ahead a use by a live word may lie and still move the expectation at once.
pub const NEAR_USES: usize = 8;

/// One streamed use of one pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderedUse {
    pub(super) slot: u32,
    pub(super) owner: u32,
}

#[derive(Debug)]
struct Order {
    model: ModelId,
    uses: Vec<OrderedUse>,
    /// The order whose pass followed last time.
    successor: usize,
}

/// A place in an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Place {
    order: usize,
    index: usize,
}

/// All orders, the expected use and the prefetch cursor.
#[derive(Debug, Default)]
pub(super) struct Orders {
    orders: Vec<Order>,
    expected: Place,
    cursor: Place,
    /// Uses between the two.
    ahead: usize,
    /// The order whose pass began last.
    last_entered: Option<usize>,
}

impl Orders {
    pub(super) fn set(&mut self, model: ModelId, uses: Vec<(u32, u32)>) {
        let uses: Vec<_> = uses.into_iter().map(|(slot, owner)| OrderedUse { slot, owner }).collect();
        match self.find(model) {
            Some(order) => self.orders[order].uses = uses,
            None => {
                let successor = self.orders.len();
                self.orders.push(Order { model, uses, successor });
            }
        }
        self.restart(self.expected.order);
    }

    /// Drops a slot's uses; what is expected stays.
    pub(super) fn remove(&mut self, slot: u32) {
        for (number, order) in self.orders.iter_mut().enumerate() {
            if number == self.expected.order {
                let passed = order.uses.iter().take(self.expected.index).filter(|u| u.slot == slot).count();
                self.expected.index -= passed;
            }
            order.uses.retain(|u| u.slot != slot);
        }
    }

    pub(super) fn expected_slot(&self) -> Option<u32> {
        self.at(self.settle(self.expected)?).map(|u| u.slot)
    }

    /// The use under the prefetch cursor, unless prefetch has run a whole pass ahead.
    pub(super) fn next_prefetch(&self) -> Option<OrderedUse> {
        let place = self.settle(self.cursor)?;
        (self.ahead < self.orders[place.order].uses.len()).then(|| self.at(place)).flatten()
    }

    pub(super) fn advance_cursor(&mut self) {
        if let Some(place) = self.settle(self.cursor) {
            self.cursor = Place { index: place.index + 1, ..place };
            self.ahead += 1;
        }
    }

    /// Uses from the expected one (0) to the next one of `slot`, looking at most `limit` uses ahead.
    pub(super) fn distance(&self, slot: u32, limit: usize) -> Option<usize> {
        let mut place = self.settle(self.expected)?;
        for distance in 0..limit {
            if self.at(place)?.slot == slot {
                return Some(distance);
            }
            place = self.settle(Place { index: place.index + 1, ..place })?;
        }
        None
    }

    /// Uses in a whole cycle from the expected one's order.
    pub(super) fn cycle(&self) -> usize {
        self.orders.iter().map(|o| o.uses.len()).sum()
    }

    /// The use `distance` ahead begins; the one after it is expected.
    pub(super) fn take(&mut self, distance: usize) -> Option<OrderedUse> {
        let mut place = self.settle(self.expected)?;
        for _ in 0..distance {
            place = self.settle(Place { index: place.index + 1, ..place })?;
        }
        let taken = self.at(place)?;
        self.expected = Place { index: place.index + 1, ..place };
        if self.ahead > distance {
            self.ahead -= distance + 1;
        } else {
            self.reset_cursor();
        }
        Some(taken)
    }

    /// A pass of `model` begins; true if that was not where we were.
    pub(super) fn enter(&mut self, model: ModelId) -> bool {
        let Some(order) = self.find(model) else { return false };
        if let Some(last) = self.last_entered.replace(order) {
            self.orders[last].successor = order;
        }
        let there = self.settle(self.expected) == self.settle(Place { order, index: 0 });
        if !there {
            self.restart(order);
        }
        !there
    }

    /// A pass of `model` ended; true if uses were left out.
    pub(super) fn leave(&mut self, model: ModelId) -> bool {
        let Some(order) = self.find(model) else { return false };
        if self.expected.order != order
            || self.expected.index == 0
            || self.expected.index >= self.orders[order].uses.len()
        {
            return false;
        }
        self.restart(self.orders[order].successor);
        true
    }

    pub(super) fn reset_cursor(&mut self) {
        self.cursor = self.expected;
        self.ahead = 0;
    }

    fn restart(&mut self, order: usize) {
        self.expected = Place { order, index: 0 };
        self.reset_cursor();
    }

    fn find(&self, model: ModelId) -> Option<usize> {
        self.orders.iter().position(|o| o.model == model)
    }

    fn at(&self, place: Place) -> Option<OrderedUse> {
        self.orders.get(place.order)?.uses.get(place.index).copied()
    }

    /// A place behind the end of an order is the first of its successor; orders without uses are passed over.
    fn settle(&self, mut place: Place) -> Option<Place> {
        for _ in 0..=self.orders.len() {
            let order = self.orders.get(place.order)?;
            if place.index < order.uses.len() {
                return Some(place);
            }
            place = Place { order: order.successor, index: 0 };
        }
        // The successors lead round through empty orders only: any order with uses will do.
        let order = self.orders.iter().position(|o| !o.uses.is_empty())?;
        Some(Place { order, index: 0 })
    }
}
