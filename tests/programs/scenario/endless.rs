//! Stories of forwards that do not end when they should, and of learning that does not: what is kept of passes meanwhile is said by how many events there are.

use super::scene::{Done, INDIRECT, MAY_STREAM, Scene};
use super::{Told, say};
use harness::ft::Ft;
use harness::gpu::Argument::Word;
use harness::sim::Sim;

const COUNT: u64 = 6;
const PAGES: u64 = 2;

/// Passes that somebody who keeps what each of them leaves would be betrayed by.
const MANY: usize = 100;

/// Launches of the long forward.
const LONG: usize = 4000;

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "a forward outlives learning" => outlives(),
        "learning is put off" => put_off(),
        "a long forward" => long(),
        _ => return None,
    })
}

fn say_events(when: &str) {
    let sim = Sim::find().expect("events are counted by simcuda");
    say(&format!("events {when}"), sim.stat("events"));
}

/// Hits that the library looked at because it was learning.
fn say_hits(scene: &Scene, when: &str) {
    let report = scene.ft.as_ref().and_then(Ft::report).unwrap_or_default();
    say(&format!("hits {when}"), report["learning"]["hits"].as_u64().unwrap_or(0));
}

/// What is launched again and again has long been proven to be a reader, and nothing of it waits to be compared.
fn passes_until_proven(scene: &Scene) -> Done {
    for _ in 0..MANY {
        scene.pass()?;
        scene.synchronize()?;
    }
    Ok(())
}

/// A second thread's forward begins while the model is learnt, and ends long after.
fn outlives() -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    scene.pass()?;
    let (begun, over) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    let (ft, model) = (Ft::find(), scene.model);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ft.iter().for_each(|ft| ft.pass_begin(model, 1));
            begun.wait();
            over.wait();
            ft.iter().for_each(|ft| ft.pass_end(model));
        });
        begun.wait();
        let told = scene.learn().and_then(|()| passes_until_proven(&scene)).and_then(|()| {
            say_events("early");
            say_hits(&scene, "early");
            passes_until_proven(&scene)?;
            say_events("late");
            say_hits(&scene, "late");
            Ok(())
        });
        over.wait();
        told
    })?;
    scene.pass()?;
    scene.finish()
}

/// A thread stays in the forward of an owner whose weight may be read through pointers: no weight moves meanwhile.
fn put_off() -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM | INDIRECT)?;
    scene.pass()?;
    let (entered, over) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    let (ft, model) = (Ft::find(), scene.model);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ft.iter().for_each(|ft| {
                ft.pass_begin(model, 1);
                ft.owner_enter(model, 0);
            });
            entered.wait();
            over.wait();
            ft.iter().for_each(|ft| {
                ft.owner_exit(model, 0);
                ft.pass_end(model);
            });
        });
        entered.wait();
        let told = (0..MANY).try_for_each(|_| {
            scene.pass()?;
            scene.synchronize()
        });
        say("phase meanwhile", u64::try_from(scene.phase()).unwrap_or(99));
        say_events("meanwhile");
        over.wait();
        told
    })?;
    scene.learn()?;
    scene.pass()?;
    scene.finish()
}

/// A forward uses each of its weights hundreds of times in turn, while it is timed.
fn long() -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    let forward = |scene: &Scene| -> Done {
        scene.begin();
        for at in (0..COUNT as usize).cycle().take(LONG) {
            let weight = scene.weights[at];
            // The first words are enough.
            let arguments = [weight.address, 4096, weight.seed, scene.counter];
            scene.owner(at, || scene.gpu.launch("check", scene.main, &arguments.map(Word)))?;
        }
        scene.end();
        scene.synchronize()
    };
    forward(&scene)?;
    forward(&scene)?;
    say_events("afterwards");
    scene.learn()?;
    scene.pass()?;
    scene.finish()
}
