//! Stories of profiles that are asked for: what the answer is before anything is known, and what is saved later.

use super::scene::{MAY_STREAM, Scene};
use super::{Told, say};

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "saves on request" => saves_on_request(),
        "whose forwards are wanted" => whose_forwards_are_wanted(),
        _ => return None,
    })
}

/// Asks for the file `second argument`/profile.json while learning, and when the plan is in force and another shape has been seen.
fn saves_on_request() -> Told {
    let folder = std::env::args().nth(2);
    let mut scene = Scene::set(6, 2, MAY_STREAM)?;
    let save = |scene: &Scene| {
        let code = scene.ft.as_ref().map_or(-9, |ft| ft.profile_save(folder.as_deref()));
        say("refused", u64::from(code.unsigned_abs()));
    };
    scene.pass()?;
    save(&scene);
    scene.learn()?;
    save(&scene);
    scene.pass()?;
    scene.finish()
}

/// What the interposer wants to hear of in each of four passes.
fn whose_forwards_are_wanted() -> Told {
    let scene = Scene::set(6, 2, MAY_STREAM)?;
    for _ in 0..4 {
        scene.begin();
        say("wanted", u64::from(scene.ft.as_ref().map_or(99, |ft| ft.wants(scene.model))));
        for at in 0..scene.weights.len() {
            scene.owner(at, || scene.check(scene.main, at))?;
        }
        scene.end();
    }
    scene.finish()
}
