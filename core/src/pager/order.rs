//! The learnt order of streamed uses (rule 9): where the program is, and how far prefetch has run ahead of it.

use crate::units::ModelId;

/// How far ahead a use by a live word may lie and still move the expectation at once.
pub const NEAR_USES: usize = 8;

/// One streamed use of one pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OrderedUse {
    pub(super) slot: u32,
    pub(super) owner: u32,
}

/// Orders of their own that the shapes of one model may have; the one that ran longest ago gives way.
pub const KEPT_SHAPES: usize = 8;

#[derive(Debug)]
struct Order {
    uses: Vec<OrderedUse>,
    /// The order whose pass followed last time.
    successor: usize,
}

/// A shape with an order that was learnt for it.
#[derive(Debug)]
struct Shape {
    shape: u64,
    order: usize,
    /// When a pass of it began last.
    entered: u64,
}

/// The orders of one model, by number.
#[derive(Debug)]
struct Known {
    model: ModelId,
    /// For shapes without one of their own.
    usual: usize,
    /// Under which its last pass began.
    running: usize,
    shapes: Vec<Shape>,
}

impl Known {
    fn order_of(&self, shape: u64) -> usize {
        self.shapes.iter().find(|known| known.shape == shape).map_or(self.usual, |known| known.order)
    }

    fn knows(&self, order: usize) -> bool {
        self.usual == order || self.shapes.iter().any(|known| known.order == order)
    }
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
    models: Vec<Known>,
    expected: Place,
    cursor: Place,
    /// Uses between the two.
    ahead: usize,
    /// The order whose pass began last.
    last_entered: Option<usize>,
    /// Passes that began.
    passes: u64,
    /// Uses that began, and uses that were passed over, since then.
    taken: usize,
    skipped: usize,
}

/// What the end of a pass means for the prediction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Left {
    /// Uses were left out: the expectation has moved.
    pub(super) moved: bool,
    /// Every use of the order began, in turn.
    pub(super) followed: bool,
}

impl Orders {
    /// The order of shapes that have none of their own.
    pub(super) fn set(&mut self, model: ModelId, uses: Vec<(u32, u32)>) {
        let uses = ordered(uses);
        match self.models.iter().position(|known| known.model == model) {
            Some(at) => {
                let usual = self.models[at].usual;
                if self.models[at].shapes.iter().any(|known| known.order == usual) {
                    // Shapes that share it keep theirs.
                    self.models[at].usual = self.order_with(at, uses);
                    self.let_go_of_unknown();
                } else {
                    self.orders[usual].uses = uses;
                }
            }
            None => {
                let usual = self.add(uses);
                self.models.push(Known { model, usual, running: usual, shapes: Vec::new() });
            }
        }
        self.restart(self.expected.order);
    }

    /// The order of one shape from now on; the same one for all shapes of the model that use the same in the same turn. False if that was known.
    pub(super) fn set_shape(&mut self, model: ModelId, shape: u64, uses: Vec<(u32, u32)>) -> bool {
        let uses = ordered(uses);
        let entered = self.passes;
        let Some(at) = self.models.iter().position(|known| known.model == model) else {
            let order = self.add(uses);
            let shapes = vec![Shape { shape, order, entered }];
            self.models.push(Known { model, usual: order, running: order, shapes });
            return true;
        };
        let before = self.models[at].order_of(shape);
        let order = self.order_with(at, uses);
        let shapes = &mut self.models[at].shapes;
        match shapes.iter_mut().find(|known| known.shape == shape) {
            Some(known) => known.order = order,
            None => {
                if shapes.len() >= KEPT_SHAPES {
                    shapes.sort_by_key(|known| std::cmp::Reverse(known.entered));
                    shapes.truncate(KEPT_SHAPES - 1);
                }
                shapes.push(Shape { shape, order, entered });
            }
        }
        self.let_go_of_unknown();
        if before != order {
            // Where a pass of the old order was expected, one of the new order is.
            let expected = if self.expected.order == before { order } else { self.expected.order };
            self.restart(expected);
        }
        before != order
    }

    /// The order of these uses among those of the model at this place, or a new one.
    fn order_with(&mut self, at: usize, uses: Vec<OrderedUse>) -> usize {
        let known = &self.models[at];
        let mut orders = std::iter::once(known.usual).chain(known.shapes.iter().map(|shape| shape.order));
        match orders.find(|&order| self.orders[order].uses == uses) {
            Some(order) => order,
            None => self.add(uses),
        }
    }

    /// Orders that no model knows any more give way to new ones.
    fn let_go_of_unknown(&mut self) {
        for (number, order) in self.orders.iter_mut().enumerate() {
            if self.models.iter().all(|known| !known.knows(number)) {
                order.uses.clear();
            }
        }
        for known in &mut self.models {
            if !known.knows(known.running) {
                known.running = known.usual;
            }
        }
    }

    /// A new order, under the number of one that nobody knows any more if there is one.
    fn add(&mut self, uses: Vec<OrderedUse>) -> usize {
        let free =
            (0..self.orders.len()).find(|&number| self.models.iter().all(|known| !known.knows(number)));
        let number = free.unwrap_or(self.orders.len());
        let order = Order { uses, successor: number };
        match self.orders.get_mut(number) {
            Some(gone) => *gone = order,
            None => self.orders.push(order),
        }
        number
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

    /// Whether prefetch has not got beyond the use that is expected.
    pub(super) fn is_empty_ahead(&self) -> bool {
        self.ahead == 0
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

    /// Uses in a whole cycle from the expected one's order: through the orders that follow each other.
    pub(super) fn cycle(&self) -> usize {
        let mut order = self.expected.order;
        let mut uses = 0;
        // Longer than all orders the chain goes round.
        for _ in 0..self.orders.len() {
            let Some(known) = self.orders.get(order) else { break };
            uses += known.uses.len();
            order = known.successor;
            if order == self.expected.order {
                break;
            }
        }
        uses
    }

    /// The use `distance` ahead begins; the one after it is expected.
    pub(super) fn take(&mut self, distance: usize) -> Option<OrderedUse> {
        let mut place = self.settle(self.expected)?;
        for _ in 0..distance {
            place = self.settle(Place { index: place.index + 1, ..place })?;
        }
        let taken = self.at(place)?;
        self.taken += 1;
        self.skipped += distance;
        self.expected = Place { index: place.index + 1, ..place };
        if self.ahead > distance {
            self.ahead -= distance + 1;
        } else {
            self.reset_cursor();
        }
        Some(taken)
    }

    /// A pass of `model` in this shape begins; true if that was not where we were.
    pub(super) fn enter(&mut self, model: ModelId, shape: u64) -> bool {
        self.passes += 1;
        (self.taken, self.skipped) = (0, 0);
        let passes = self.passes;
        let Some(known) = self.models.iter_mut().find(|known| known.model == model) else { return false };
        if let Some(known) = known.shapes.iter_mut().find(|known| known.shape == shape) {
            known.entered = passes;
        }
        let order = known.order_of(shape);
        known.running = order;
        if let Some(last) = self.last_entered.replace(order) {
            self.orders[last].successor = order;
        }
        let there = self.settle(self.expected) == self.settle(Place { order, index: 0 });
        if !there {
            self.restart(order);
        }
        !there
    }

    /// A pass of `model` ended.
    pub(super) fn leave(&mut self, model: ModelId) -> Left {
        let Some(known) = self.models.iter().find(|known| known.model == model) else {
            return Left { moved: false, followed: true };
        };
        let order = known.running;
        let uses = self.orders[order].uses.len();
        // Another pass that began meanwhile has taken the count over: nothing is known then.
        let counted = self.last_entered == Some(order);
        let followed = !counted || (self.skipped == 0 && self.taken == uses);
        let here = self.expected.order == order && self.expected.index > 0 && self.expected.index < uses;
        if here {
            self.restart(self.orders[order].successor);
        }
        Left { moved: here, followed }
    }

    pub(super) fn reset_cursor(&mut self) {
        self.cursor = self.expected;
        self.ahead = 0;
    }

    fn restart(&mut self, order: usize) {
        self.expected = Place { order, index: 0 };
        self.reset_cursor();
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

fn ordered(uses: Vec<(u32, u32)>) -> Vec<OrderedUse> {
    uses.into_iter().map(|(slot, owner)| OrderedUse { slot, owner }).collect()
}
