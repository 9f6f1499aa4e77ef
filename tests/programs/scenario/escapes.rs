//! Stories of addresses of weights that reach the GPU by small copies of every kind.

use super::Told;
use super::scene::{Done, Scene};
use cudarc::driver::sys;
use harness::driver::check;
use harness::gpu::Argument::{Struct, Word};
use harness::gpu::PAGE;

const COUNT: u64 = 6;
const PAGES: u64 = 2;
/// Forwards in which a new plan comes, if one does.
const PATIENCE: usize = 2000;

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "an address in a copy" => {
            an_address_escapes(|scene, address| scene.gpu.upload(scene.array, &address.to_le_bytes()))
        }
        "a streamed weight's address in a copy, and many forwards" => a_streamed_one_escapes(),
        "an address in a copy of any memory" => an_address_escapes(|scene, address| {
            check("cuMemcpy", scene.gpu.driver.copy(scene.array, (&raw const *address).addr() as u64, 8))
        }),
        "an address in an asynchronous copy of any memory" => an_address_escapes(|scene, address| {
            let source = (&raw const *address).addr() as u64;
            check("cuMemcpyAsync", scene.gpu.driver.copy_async(scene.array, source, 8, scene.main))
        }),
        "an address in a copy of pinned memory" => an_address_escapes(|scene, address| {
            let source = scene.gpu.host_alloc(4096)?;
            scene.gpu.upload(source, &address.to_le_bytes())?;
            check("cuMemcpyAsync", scene.gpu.driver.copy_async(scene.array, source, 8, scene.main))
        }),
        "an address in a copy of rows" => an_address_escapes(|scene, address| {
            let copy = rows_to(scene.array, address, sys::CUmemorytype::CU_MEMORYTYPE_HOST);
            check("cuMemcpy2D", scene.gpu.driver.copy_2d(&copy))
        }),
        "an address in a copy of rows of any memory" => an_address_escapes(|scene, address| {
            let copy = rows_to(scene.array, address, sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED);
            check("cuMemcpy2DAsync", scene.gpu.driver.copy_2d_async(&copy, scene.main))
        }),
        _ => return None,
    })
}

/// Kernels read a weight through a pointer that came by a small copy; nothing shows the weight.
fn an_address_escapes(copy: impl Fn(&Scene, &u64) -> Done) -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let weight = scene.weights[3];
    copy(&scene, &weight.address)?;
    scene.synchronize()?;
    for _ in 0..3 {
        scene.pass()?;
        let seeds = Struct(vec![weight.seed, 0, 0, 0]);
        let arguments = [Word(scene.array), Word(1), Word(weight.bytes), seeds, Word(scene.counter)];
        scene.gpu.launch("check_indirect", scene.main, &arguments)?;
    }
    scene.finish()
}

/// It becomes private, and forwards go on.
fn a_streamed_one_escapes() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let report = scene.ft.as_ref().and_then(|ft| ft.report()).unwrap_or_default();
    let mut units = report["placements"].as_array().into_iter().flatten();
    let whole = |unit: &&serde_json::Value| unit["streamed_bytes"] == PAGES * PAGE as u64;
    let name = units.find(whole).and_then(|unit| unit["name"].as_str()).unwrap_or_default().to_owned();
    let streamed = (0..COUNT as usize).find(|at| name == format!("layers.{at}.weight"));
    let weight = scene.weights[streamed.expect("a weight that is streamed whole")];
    scene.gpu.upload(scene.array, &weight.address.to_le_bytes())?;
    for _ in 0..PATIENCE {
        scene.pass()?;
        scene.synchronize()?;
        if scene.ft.as_ref().and_then(|ft| ft.report()).unwrap_or_default()["counters"]["replans"] == 1 {
            break;
        }
    }
    scene.pass()?;
    scene.finish()
}

/// A copy of one word as a row.
fn rows_to(target: u64, word: &u64, kind: sys::CUmemorytype) -> sys::CUDA_MEMCPY2D {
    let source = std::ptr::from_ref(word);
    sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: kind,
        srcHost: source.cast(),
        srcDevice: source.addr() as u64,
        srcArray: std::ptr::null_mut(),
        srcPitch: 8,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: target,
        dstArray: std::ptr::null_mut(),
        dstPitch: 8,
        WidthInBytes: 8,
        Height: 1,
    }
}
