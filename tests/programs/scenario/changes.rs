//! Stories of programs that change after the switch-over: other shapes in other orders, an order that turns round, a part that is left out, a second
//! model of the same weights. What follows of new plans is in `changes/plans.rs`, what the program may choose itself in `changes/chosen.rs`.

#[path = "changes/chosen.rs"]
mod chosen;
#[path = "changes/plans.rs"]
mod plans;

use super::scene::{Done, MAY_STREAM, Scene};
use super::{Told, say};
use harness::ft::Ft;

const COUNT: u64 = 6;
const PAGES: u64 = 2;

const UP: [usize; 6] = [0, 1, 2, 3, 4, 5];
const DOWN: [usize; 6] = [5, 4, 3, 2, 1, 0];

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "shapes in orders of their own" => shapes_in_orders_of_their_own(),
        "a shape learnt in its own order" => a_shape_learnt_in_its_own_order(),
        "an order that turns round" => an_order_that_turns_round(),
        "a second half that is left out" => a_second_half_that_is_left_out(),
        "shapes that never come again" => shapes_that_never_come_again(),
        "an order that never settles" => an_order_that_never_settles(),
        "a second model of streamed weights" => a_second_model_of_streamed_weights(),
        "other kernels in another order, and no owners" => other_kernels_without_owners(),
        "changes under four threads" => changes_under_four_threads(),
        "a second model that is not learnt" => plans::a_second_model_that_is_not_learnt(),
        "a second model where little is streamed" => plans::a_second_model_where_little_is_streamed(),
        "a second model in a capture" => plans::a_second_model_in_a_capture(),
        "a larger second model" => plans::a_larger_second_model(),
        "a larger second model under four threads" => plans::a_larger_second_model_under_four_threads(),
        "half of the weights from now on" => plans::half_of_the_weights_from_now_on(),
        "half of the weights, and nobody asks" => plans::half_of_the_weights(false),
        "half of the weights, and a plan that is asked for" => plans::half_of_the_weights(true),
        "a choice whose model goes first" => chosen::a_choice_whose_model_goes_first(),
        "weights that the program chose" => chosen::weights_that_the_program_chose(),
        "a strategy that the program chose" => chosen::chosen_before_learning(
            "{\"name\": \"NthLayerStrategy\", \"parameters\": {\"nth_layer\": 2}}",
        ),
        "too few weights that the program chose" => {
            chosen::chosen_before_learning("{\"name\": \"mine\", \"weights\": [\"layers.1.weight\"]}")
        }
        _ => return None,
    })
}

/// One pass in this shape over these weights, on the main stream.
fn pass(scene: &Scene, shape: u64, order: &[usize]) -> Done {
    pass_on(scene, scene.main, shape, order)
}

fn pass_on(scene: &Scene, stream: u64, shape: u64, order: &[usize]) -> Done {
    if let Some(ft) = &scene.ft {
        ft.pass_begin(scene.model, shape);
    }
    for &at in order {
        scene.owner(at, || scene.check(stream, at))?;
    }
    scene.end();
    Ok(())
}

/// What nobody foresaw so far: loads on demand, uses in another turn, hits that read over the link.
fn unforeseen(scene: &Scene) -> u64 {
    let Some(report) = scene.ft.as_ref().and_then(Ft::report) else { return 0 };
    let count = |key: &str| report["counters"][key].as_u64().unwrap_or(0);
    count("demand_loads") + count("mispredictions") + count("redirects")
}

/// Says how much was not foreseen while `passes` ran.
fn watched(scene: &Scene, what: &str, passes: impl FnOnce() -> Done) -> Done {
    let before = unforeseen(scene);
    passes()?;
    say(what, unforeseen(scene) - before);
    Ok(())
}

/// A shape that was not learnt goes through the weights the other way round; both come in turn, alone and in rows.
fn shapes_in_orders_of_their_own() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    watched(&scene, "at first", || {
        pass(&scene, 1, &UP)?;
        (0..3).try_for_each(|_| pass(&scene, 2, &DOWN))
    })?;
    watched(&scene, "later", || {
        for _ in 0..3 {
            (0..3).try_for_each(|_| pass(&scene, 1, &UP))?;
            (0..3).try_for_each(|_| pass(&scene, 2, &DOWN))?;
        }
        Ok(())
    })?;
    scene.finish()
}

/// The learning passes show both shapes.
fn a_shape_learnt_in_its_own_order() -> Told {
    let scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    for _ in 0..2 {
        for (shape, order) in [(1, UP), (2, DOWN), (1, UP)] {
            pass(&scene, shape, &order)?;
        }
    }
    scene.synchronize()?;
    say("phase", u64::try_from(scene.phase()).unwrap_or(99));
    watched(&scene, "later", || {
        for (shape, order) in [(1, UP), (2, DOWN), (2, DOWN), (1, UP)] {
            pass(&scene, shape, &order)?;
        }
        Ok(())
    })?;
    scene.finish()
}

fn an_order_that_turns_round() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    (0..3).try_for_each(|_| pass(&scene, 1, &UP))?;
    watched(&scene, "at first", || (0..2).try_for_each(|_| pass(&scene, 1, &DOWN)))?;
    watched(&scene, "later", || (0..6).try_for_each(|_| pass(&scene, 1, &DOWN)))?;
    scene.finish()
}

/// From some pass on the second half is left out, and its pages are not copied any more; later it comes back.
fn a_second_half_that_is_left_out() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let copied = || {
        let report = scene.ft.as_ref().and_then(Ft::report);
        report.and_then(|report| report["counters"]["pages_in"].as_u64()).unwrap_or(0)
    };
    (0..4).try_for_each(|_| pass(&scene, 1, &UP[..3]))?;
    scene.synchronize()?;
    let before = copied();
    (0..10).try_for_each(|_| pass(&scene, 1, &UP[..3]))?;
    scene.synchronize()?;
    say("pages of ten halves", copied() - before);
    (0..4).try_for_each(|_| pass(&scene, 1, &UP))?;
    watched(&scene, "later", || (0..4).try_for_each(|_| pass(&scene, 1, &UP)))?;
    scene.finish()
}

/// As decoding with a mask that grows. The order turns round in the middle.
fn shapes_that_never_come_again() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    watched(&scene, "at first", || (100..110).try_for_each(|shape| pass(&scene, shape, &UP)))?;
    (200..203).try_for_each(|shape| pass(&scene, shape, &DOWN))?;
    watched(&scene, "later", || (203..215).try_for_each(|shape| pass(&scene, shape, &DOWN)))?;
    // What was learnt of the first shape stands.
    pass(&scene, 1, &UP)?;
    watched(&scene, "again", || (0..3).try_for_each(|_| pass(&scene, 1, &UP)))?;
    scene.finish()
}

/// Says how many passes wanted to hear of owners.
fn an_order_that_never_settles() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let mut observed = 0;
    for round in 0..100_usize {
        let order: Vec<usize> = (0..6).map(|at| (at * [1, 5][round % 2] + round / 2) % 6).collect();
        let Some(ft) = &scene.ft else { continue };
        ft.pass_begin(scene.model, 1);
        observed += u64::from(ft.wants(scene.model) & 1 != 0);
        for at in order {
            scene.owner(at, || scene.check(scene.main, at))?;
        }
        scene.end();
    }
    say("observed", observed);
    scene.finish()
}

/// The same weights under a second model, which uses them in another order, in turn with the first.
fn a_second_model_of_streamed_weights() -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    let first = scene.model;
    scene.name();
    let second = scene.model;
    for _ in 0..2 {
        pass(&scene, 1, &DOWN)?;
    }
    let turn = |scene: &mut Scene| {
        scene.model = first;
        pass(scene, 1, &UP)?;
        scene.model = second;
        pass(scene, 1, &DOWN)
    };
    for _ in 0..2 {
        turn(&mut scene)?;
    }
    let before = unforeseen(&scene);
    for _ in 0..4 {
        turn(&mut scene)?;
    }
    say("later", unforeseen(&scene) - before);
    scene.finish()
}

/// As a compiled program: no owner is ever told of. From some pass on other kernels go through the weights the other way round.
fn other_kernels_without_owners() -> Told {
    let scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    let pass = |kernel: &'static str, shape: u64, order: &[usize]| -> Done {
        if let Some(ft) = &scene.ft {
            ft.pass_begin(scene.model, shape);
        }
        for &at in order {
            let weight = scene.weights[at];
            let mut arguments = vec![weight.address, weight.bytes, weight.seed, scene.counter];
            if kernel == "check_slow" {
                arguments.push(10);
            }
            scene.launch(kernel, &arguments)?;
        }
        scene.end();
        Ok(())
    };
    (0..4).try_for_each(|_| pass("check", 1, &UP))?;
    say("phase", u64::try_from(scene.phase()).unwrap_or(99));
    watched(&scene, "at first", || (0..4).try_for_each(|_| pass("check_slow", 2, &DOWN)))?;
    watched(&scene, "later", || (0..6).try_for_each(|_| pass("check_slow", 2, &DOWN)))?;
    scene.finish()
}

/// Four threads change shapes and orders as they like, one model between them.
fn changes_under_four_threads() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let work = |thread: u64| -> Done {
        scene.gpu.enter()?;
        let stream = scene.gpu.stream()?;
        for round in 0..10 {
            let shape = (thread + round) % 3;
            let order: Vec<usize> =
                (0..6).map(|at| (at * [1, 5, 1][shape as usize] + shape as usize) % 6).collect();
            pass_on(&scene, stream, shape, &order)?;
        }
        Ok(())
    };
    let results: Vec<Done> = std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = (0..4).map(|thread| scope.spawn(move || work(thread))).collect();
        running.into_iter().map(|thread| thread.join().expect("a thread ends")).collect()
    });
    results.into_iter().collect::<Done>()?;
    scene.gpu.synchronize()?;
    scene.finish()
}
