//! Orders by the shape of a pass: which one a pass is held to follow, how many are kept, and what the end of a pass tells of it. That every byte
//! is right whatever is expected is `pager_properties`' matter.

mod pager_model;

use flextensor_core::pager::{CopyStream, KEPT_SHAPES, PassTally};
use flextensor_core::units::{ModelId, UnitId};
use pager_model::world::{S1, World, pages_in, reads};

const MODEL: ModelId = ModelId(0);

/// Six units of two pages, laid around a ring that holds three of them, used in turn by shapes of which nothing else is known.
fn six() -> World {
    let units: Vec<_> = (0..6).map(|unit| (unit * 2 % 6, 2)).collect();
    let mut world = World::new(6, 2, &units, 5);
    let uses = uses(&[0, 1, 2, 3, 4, 5]);
    world.pager.set_order(MODEL, &uses);
    world
}

fn uses(units: &[u32]) -> Vec<(UnitId, u32)> {
    units.iter().map(|&unit| (UnitId(unit), unit)).collect()
}

/// One pass by words that are live. Says what its end told, and how many pages nobody foresaw.
fn pass(world: &mut World, shape: u64, units: &[u32]) -> (PassTally, u32) {
    world.take_journal();
    world.pager.pass_begin(MODEL, shape);
    world.prefetch(S1);
    for &unit in units {
        world.launch(S1, &[reads(unit).live()]);
        world.gpu.run(25);
    }
    let tally = world.pager.pass_end(MODEL);
    world.prefetch(S1);
    (tally, pages_in(&world.take_journal(), CopyStream::Demand))
}

#[test]
fn a_pass_follows_the_order_of_its_own_shape_from_its_first_use_on() {
    let mut world = six();
    let (up, down) = ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]);
    assert!(world.pager.set_shape_order(MODEL, 2, &uses(&down)));
    for _ in 0..3 {
        for (shape, units) in [(1, up), (1, up), (2, down), (2, down)] {
            let (tally, unforeseen) = pass(&mut world, shape, &units);
            assert_eq!((tally.followed, tally.redirects, unforeseen), (true, 0, 0), "shape {shape}");
        }
    }
    world.finish().expect("right bytes");
}

#[test]
fn a_shape_that_is_not_known_follows_the_usual_order() {
    let mut world = six();
    world.pager.set_shape_order(MODEL, 2, &uses(&[5, 4, 3, 2, 1, 0]));
    let (tally, unforeseen) = pass(&mut world, 77, &[0, 1, 2, 3, 4, 5]);
    assert_eq!((tally.followed, unforeseen), (true, 0));
}

#[test]
fn what_a_pass_left_out_or_did_in_another_turn_is_told_at_its_end() {
    let mut world = six();
    assert!(pass(&mut world, 1, &[0, 1, 2, 3, 4, 5]).0.followed);
    assert!(!pass(&mut world, 1, &[0, 1, 2]).0.followed, "the second half was left out");
    assert!(pass(&mut world, 1, &[0, 1, 2, 3, 4, 5]).0.followed);
    assert!(!pass(&mut world, 1, &[0, 2, 1, 3, 4, 5]).0.followed, "in another turn");
    let (tally, _) = pass(&mut world, 1, &[0, 1, 2, 3, 4, 5]);
    assert_eq!(
        tally,
        PassTally { followed: true, demand_loads: 0, redirects: 0 },
        "each pass is told of by itself"
    );
}

#[test]
fn an_order_that_is_known_already_is_no_news() {
    let mut world = six();
    assert!(!world.pager.set_shape_order(MODEL, 1, &uses(&[0, 1, 2, 3, 4, 5])), "as the usual one");
    assert!(world.pager.set_shape_order(MODEL, 2, &uses(&[0, 1, 2])));
    assert!(!world.pager.set_shape_order(MODEL, 2, &uses(&[0, 1, 2])));
    assert!(world.pager.set_shape_order(MODEL, 2, &uses(&[2, 1, 0])));
}

/// Shapes that share an order follow each other without a break: what was prefetched for the one is the other's.
#[test]
fn a_change_of_shape_in_one_order_copies_nothing_twice() {
    let mut world = six();
    world.pager.set_shape_order(MODEL, 1, &uses(&[0, 1, 2, 3, 4, 5]));
    world.pager.set_shape_order(MODEL, 2, &uses(&[0, 1, 2, 3, 4, 5]));
    pass(&mut world, 1, &[0, 1, 2, 3, 4, 5]);
    let before = world.pager.counters().pages_in;
    for shape in [2, 1, 2, 2, 1] {
        pass(&mut world, shape, &[0, 1, 2, 3, 4, 5]);
    }
    assert_eq!(world.pager.counters().pages_in - before, 5 * 12);
}

#[test]
fn the_shape_that_ran_longest_ago_gives_way_and_nothing_grows() {
    let mut world = six();
    let order = |shape: u64| {
        let mut units = vec![0, 1, 2, 3, 4, 5];
        units.rotate_left(1 + shape as usize % 5);
        if shape >= 5 {
            units.reverse();
        }
        units
    };
    let last = KEPT_SHAPES as u64;
    for shape in 0..=last {
        world.pager.set_shape_order(MODEL, shape, &uses(&order(shape)));
        pass(&mut world, shape, &order(shape));
        pass(&mut world, 0, &order(0));
    }
    for kept in [0, 2, last] {
        pass(&mut world, kept, &order(kept));
        let (tally, unforeseen) = pass(&mut world, kept, &order(kept));
        assert_eq!((tally.followed, unforeseen), (true, 0), "shape {kept}");
    }
    assert!(
        pass(&mut world, 1, &[0, 1, 2, 3, 4, 5]).0.followed,
        "shape 1 ran longest ago: it is the usual one again"
    );
    let orders = |world: &World| format!("{:?}", world.pager).matches("successor").count();
    for shape in 100..200 {
        world.pager.set_shape_order(MODEL, shape, &uses(&order(shape % 9)));
    }
    assert!(orders(&world) <= KEPT_SHAPES + 2, "{} orders", orders(&world));
    world.finish().expect("right bytes");
}

#[test]
fn a_new_usual_order_leaves_the_orders_that_shapes_have_of_their_own() {
    let mut world = six();
    world.pager.set_shape_order(MODEL, 1, &uses(&[0, 1, 2, 3, 4, 5]));
    world.pager.set_order(MODEL, &uses(&[5, 4, 3, 2, 1, 0]));
    assert!(pass(&mut world, 1, &[0, 1, 2, 3, 4, 5]).0.followed);
    assert!(pass(&mut world, 9, &[5, 4, 3, 2, 1, 0]).0.followed);
}

#[test]
fn a_pass_that_another_model_s_pass_came_between_is_not_blamed() {
    let mut world = six();
    world.pager.set_order(ModelId(1), &uses(&[0]));
    world.pager.pass_begin(MODEL, 1);
    world.launch(S1, &[reads(0).live()]);
    world.pager.pass_begin(ModelId(1), 1);
    world.pager.pass_end(ModelId(1));
    assert!(world.pager.pass_end(MODEL).followed);
}

/// A unit that leaves takes its uses out of every shape's order, and a pass of that shape still follows.
#[test]
fn a_unit_that_leaves_the_ring_leaves_the_order_of_every_shape() {
    let mut world = six();
    world.pager.set_shape_order(MODEL, 2, &uses(&[5, 4, 3, 2, 1, 0]));
    pass(&mut world, 2, &[5, 4, 3, 2, 1, 0]);
    assert!(world.make_private(UnitId(3)));
    assert!(pass(&mut world, 2, &[5, 4, 2, 1, 0]).0.followed);
    assert!(pass(&mut world, 1, &[0, 1, 2, 4, 5]).0.followed);
    world.finish().expect("right bytes");
}
