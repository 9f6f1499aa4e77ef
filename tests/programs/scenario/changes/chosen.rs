//! What the program chose to have streamed, by strategy or by name, before and after learning.

use super::super::pages::device_bytes;
use super::super::scene::{Done, MAY_STREAM, Scene};
use super::super::{Told, say};
use super::{COUNT, PAGES, UP, pass, watched};
use harness::ft::Ft;

/// Streamed weights, as digits of a number: 1 for the first one, 10 for the second and so on.
fn streamed_weights(scene: &Scene) -> u64 {
    let Some(report) = scene.ft.as_ref().and_then(Ft::report) else { return 0 };
    let units = report["placements"].as_array().into_iter().flatten();
    let streamed = units.filter(|unit| unit["streamed_bytes"].as_u64() > Some(0));
    let number = |name: &str| name.strip_prefix("layers.")?.strip_suffix(".weight")?.parse::<u32>().ok();
    streamed.filter_map(|unit| number(unit["name"].as_str()?)).map(|at| 10u64.pow(at)).sum()
}

/// Passes until the plan is the program's, or many have gone by.
fn until_streamed(scene: &Scene, wanted: u64) -> Done {
    for _ in 0..400 {
        if streamed_weights(scene) == wanted {
            break;
        }
        pass(scene, 1, &UP)?;
        scene.synchronize()?;
    }
    Ok(())
}

/// Every other weight, then another half.
pub(crate) fn weights_that_the_program_chose() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let say_of = |text: Option<&str>| {
        let code = scene.ft.as_ref().map_or(0, |ft| ft.model_strategy(scene.model, text));
        u64::from(code.unsigned_abs())
    };
    let weights = |list: &str| format!("{{\"name\": \"mine\", \"weights\": [{list}]}}");
    let odd = weights("\"layers.1.weight\", \"layers.3.weight\", \"layers.5.weight\", \"elsewhere\"");
    say("code", say_of(Some(&odd)));
    until_streamed(&scene, 101_010)?;
    say("odd", streamed_weights(&scene));
    let last = weights("\"layers.3.weight\", \"layers.4.weight\", \"layers.5.weight\"");
    say("code of the last", say_of(Some(&last)));
    until_streamed(&scene, 111_000)?;
    say("last", streamed_weights(&scene));
    say("code of nonsense", say_of(Some("{\"name\": \"Nonsense\"}")));
    say(
        "code of a stranger",
        scene.ft.as_ref().map_or(0, |ft| ft.model_strategy(99, None)).unsigned_abs().into(),
    );
    watched(&scene, "later", || (0..6).try_for_each(|_| pass(&scene, 1, &UP)))?;
    scene.finish()
}

/// Waits for a minute at most until there are as many streams as that: those that look at weights beside the program come and go.
fn wait_for_streams(wanted: u64) -> u64 {
    let begun = std::time::Instant::now();
    while device_bytes("streams") != wanted && begun.elapsed() < std::time::Duration::from_secs(60) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    device_bytes("streams")
}

/// A forward has a plan made ready, with a ring of its own; no other forward ends that could put it in force, and the model goes.
pub(crate) fn a_choice_whose_model_goes_first() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    scene.pass()?;
    scene.synchronize()?;
    // The scene has two of its own, and a ring two.
    let without_ring = 2;
    let with_ring = wait_for_streams(without_ring + 2);
    let last =
        "{\"name\": \"mine\", \"weights\": [\"layers.3.weight\", \"layers.4.weight\", \"layers.5.weight\"]}";
    let code = scene.ft.as_ref().map_or(0, |ft| ft.model_strategy(scene.model, Some(last)));
    say("code", code.unsigned_abs().into());
    pass(&scene, 1, &UP)?;
    say("streams of the plan", wait_for_streams(with_ring + 2) - with_ring);
    let wrong = scene.finish()?;
    scene.drop_name();
    say("streams left", wait_for_streams(without_ring).saturating_sub(without_ring));
    Ok(wrong)
}

/// The program has its say before anything is learnt.
pub(crate) fn chosen_before_learning(text: &str) -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    if let Some(ft) = &scene.ft {
        say("code", ft.model_strategy(scene.model, Some(text)).unsigned_abs().into());
    }
    scene.learn()?;
    say("streamed", streamed_weights(&scene));
    scene.finish()
}
