//! Stories of graphs whose nodes are made or changed by hand: nothing is captured, so only the call that makes the node shows the weight.
//! `a node: KIND by WAY`; kinds and ways are listed in `Kind` and `Way`. And one of a call that makes many copies, which no capture takes.

use super::Told;
use super::scene::{Scene, Weight};
use cudarc::driver::sys;
use harness::driver::{Failure, check};
use harness::gpu::Handle;
use harness::pattern;
use std::ffi::c_void;

type Done = Result<(), Failure>;

const COUNT: u64 = 6;
const PAGES: u64 = 2;
/// The weight that the node shows.
const AT: usize = 3;
/// Bytes of the memory beside the weights: too few to be managed.
const BESIDE: usize = 512 << 10;
const FILLED: u8 = 7;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Kernel,
    Copy,
    Fill,
}

/// By which call the weight comes into the graph.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Add,
    AddAny,
    AddAnyWithEdges,
    Set,
    SetAny,
    SetExecutable,
    SetExecutableAny,
}

pub(crate) fn tell(story: &str) -> Option<Told> {
    if story == "a batch of copies" {
        return Some(a_batch_of_copies());
    }
    let (kind, way) = story.strip_prefix("a node: ")?.split_once(" by ")?;
    let kind = match kind {
        "kernel" => Kind::Kernel,
        "copy" => Kind::Copy,
        "fill" => Kind::Fill,
        _ => return None,
    };
    let way = match way {
        "add" => Way::Add,
        "add any" => Way::AddAny,
        "add any with edges" => Way::AddAnyWithEdges,
        "set" => Way::Set,
        "set any" => Way::SetAny,
        "set executable" => Way::SetExecutable,
        "set executable any" => Way::SetExecutableAny,
        _ => return None,
    };
    Some(a_node(kind, way))
}

/// Parts of two weights, read by one call on a stream; then the same while the stream captures. Says what the driver answers to that.
fn a_batch_of_copies() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let beside = [scene.gpu.alloc(BESIDE)?, scene.gpu.alloc(BESIDE)?];
    let read = [scene.weights[1], scene.weights[4]];
    let batch = || {
        let (mut targets, mut sources, mut sizes) = (beside, read.map(|weight| weight.address), [BESIDE; 2]);
        let (targets, sources, sizes) = (targets.as_mut_ptr(), sources.as_mut_ptr(), sizes.as_mut_ptr());
        let none = std::ptr::null_mut();
        scene.gpu.driver.copy_batch(targets, sources, sizes, 2, none, std::ptr::null_mut(), 0, scene.main)
    };
    let mut wrong = 0;
    for _ in 0..3 {
        scene.pass()?;
        check("cuMemcpyBatchAsync", batch())?;
        scene.synchronize()?;
        for (address, weight) in beside.into_iter().zip(read) {
            wrong += pattern::mismatches(weight.seed, &scene.gpu.download(address, BESIDE)?) as u64;
        }
    }
    check("cuStreamBeginCapture", scene.gpu.driver.begin_capture(scene.main, 0))?;
    super::say("in a capture", u64::from(batch()));
    let mut graph = 0;
    super::say("the capture", u64::from(scene.gpu.driver.end_capture(scene.main, &mut graph)));
    scene.pass()?;
    Ok(wrong + scene.finish()?)
}

/// The graph is launched between passes that take the pages of everything that streams.
fn a_node(kind: Kind, way: Way) -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    let weight = scene.weights[AT];
    let beside = scene.gpu.alloc(BESIDE)?;
    let executable = built(&scene, kind, way, weight, beside)?;
    let others = |scene: &Scene, at| if at == AT { Ok(()) } else { scene.check(scene.main, at) };
    let mut wrong = 0;
    for _ in 0..3 {
        scene.pass_with(others)?;
        check("cuGraphLaunch", scene.gpu.driver.graph_launch(executable, scene.main))?;
        scene.pass_with(others)?;
        scene.synchronize()?;
        wrong += match kind {
            Kind::Kernel => 0,
            Kind::Copy => pattern::mismatches(weight.seed, &scene.gpu.download(beside, BESIDE)?) as u64,
            Kind::Fill => {
                let data = scene.gpu.download(weight.address, weight.bytes as usize)?;
                data.iter().filter(|byte| **byte != FILLED).count() as u64
            }
        };
    }
    if kind == Kind::Fill {
        scene.weights.remove(AT);
    }
    Ok(wrong + scene.finish()?)
}

/// An executable graph of one node that shows the weight. A node that is changed later shows other memory first.
fn built(scene: &Scene, kind: Kind, way: Way, weight: Weight, beside: u64) -> Result<u64, Failure> {
    let driver = &scene.gpu.driver;
    let (mut graph, mut node, mut executable) = (0, 0, 0);
    check("cuGraphCreate", driver.graph_create(&mut graph, 0))?;
    let first = if matches!(way, Way::Add | Way::AddAny | Way::AddAnyWithEdges) {
        weight
    } else {
        Weight { address: beside, bytes: 0, ..weight }
    };
    with_parameters(scene, kind, first, beside, |parameters| {
        let none = std::ptr::null();
        let mut any = parameters.any();
        check(
            "cuGraphAddNode",
            match (way, parameters) {
                (Way::AddAny, _) => driver.graph_add_any(&mut node, graph, none, 0, &mut any),
                (Way::AddAnyWithEdges, _) => {
                    driver.graph_add_any_v2(&mut node, graph, none, std::ptr::null(), 0, &mut any)
                }
                (_, Parameters::Kernel(kernel)) => {
                    driver.graph_add_kernel(&mut node, graph, none, 0, &kernel)
                }
                (_, Parameters::Copy(copy)) => {
                    driver.graph_add_copy(&mut node, graph, none, 0, &copy, scene.gpu.context)
                }
                (_, Parameters::Fill(fill)) => {
                    driver.graph_add_fill(&mut node, graph, none, 0, &fill, scene.gpu.context)
                }
            },
        )
    })?;
    with_parameters(scene, kind, weight, beside, |parameters| match (way, parameters) {
        (Way::Set, Parameters::Kernel(kernel)) => check("set", driver.node_set_kernel(node, &kernel)),
        (Way::Set, Parameters::Copy(copy)) => check("set", driver.node_set_copy(node, &copy)),
        (Way::Set, Parameters::Fill(fill)) => check("set", driver.node_set_fill(node, &fill)),
        (Way::SetAny, any) => check("set", driver.node_set_any(node, &mut any.any())),
        _ => Ok(()),
    })?;
    check("cuGraphInstantiate", driver.graph_instantiate(&mut executable, graph, 0))?;
    with_parameters(scene, kind, weight, beside, |parameters| {
        let context = scene.gpu.context;
        let code = match (way, parameters) {
            (Way::SetExecutable, Parameters::Kernel(kernel)) => {
                driver.executable_set_kernel(executable, node, &kernel)
            }
            (Way::SetExecutable, Parameters::Copy(copy)) => {
                driver.executable_set_copy(executable, node, &copy, context)
            }
            (Way::SetExecutable, Parameters::Fill(fill)) => {
                driver.executable_set_fill(executable, node, &fill, context)
            }
            (Way::SetExecutableAny, any) => driver.executable_set_any(executable, node, &mut any.any()),
            _ => 0,
        };
        check("set executable", code)
    })?;
    Ok(executable)
}

#[derive(Clone, Copy)]
enum Parameters {
    Kernel(sys::CUDA_KERNEL_NODE_PARAMS_v2),
    Copy(sys::CUDA_MEMCPY3D),
    Fill(sys::CUDA_MEMSET_NODE_PARAMS),
}

impl Parameters {
    /// The same for a call that takes nodes of any kind.
    fn any(self) -> sys::CUgraphNodeParams {
        use sys::CUgraphNodeType as Type;
        let mut detail = sys::CUgraphNodeParams_st__bindgen_ty_1 { reserved1: [0; 29] };
        let type_ = match self {
            Parameters::Kernel(k) => {
                detail.kernel = sys::CUDA_KERNEL_NODE_PARAMS_v3 {
                    func: k.func,
                    gridDimX: k.gridDimX,
                    gridDimY: k.gridDimY,
                    gridDimZ: k.gridDimZ,
                    blockDimX: k.blockDimX,
                    blockDimY: k.blockDimY,
                    blockDimZ: k.blockDimZ,
                    sharedMemBytes: k.sharedMemBytes,
                    kernelParams: k.kernelParams,
                    extra: k.extra,
                    kern: k.kern,
                    ctx: k.ctx,
                };
                Type::CU_GRAPH_NODE_TYPE_KERNEL
            }
            Parameters::Copy(copy) => {
                let context = std::ptr::null_mut();
                detail.memcpy = sys::CUDA_MEMCPY_NODE_PARAMS {
                    flags: 0,
                    reserved: 0,
                    copyCtx: context,
                    copyParams: copy,
                };
                Type::CU_GRAPH_NODE_TYPE_MEMCPY
            }
            Parameters::Fill(f) => {
                detail.memset = sys::CUDA_MEMSET_NODE_PARAMS_v2 {
                    dst: f.dst,
                    pitch: f.pitch,
                    value: f.value,
                    elementSize: f.elementSize,
                    width: f.width,
                    height: f.height,
                    ctx: std::ptr::null_mut(),
                };
                Type::CU_GRAPH_NODE_TYPE_MEMSET
            }
        };
        sys::CUgraphNodeParams { type_, reserved0: [0; 3], __bindgen_anon_1: detail, reserved2: 0 }
    }
}

/// Runs `work` with the parameters of a node that checks the weight, copies its beginning beside it, or fills it.
fn with_parameters(
    scene: &Scene,
    kind: Kind,
    weight: Weight,
    beside: u64,
    work: impl FnOnce(Parameters) -> Done,
) -> Done {
    match kind {
        Kind::Kernel => {
            // By its kernel, as runtimes that load libraries have it; the function's field stays empty.
            let kernel = scene.gpu.kernel("check", Handle::Kernel)?;
            let mut values = [weight.address, weight.bytes, weight.seed, scene.counter];
            let mut pointers: Vec<*mut c_void> =
                values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
            work(Parameters::Kernel(sys::CUDA_KERNEL_NODE_PARAMS_v2 {
                func: std::ptr::null_mut(),
                gridDimX: 1,
                gridDimY: 1,
                gridDimZ: 1,
                blockDimX: 32,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: 0,
                kernelParams: pointers.as_mut_ptr(),
                extra: std::ptr::null_mut(),
                kern: std::ptr::with_exposed_provenance_mut(kernel as usize),
                ctx: std::ptr::null_mut(),
            }))
        }
        Kind::Copy => work(Parameters::Copy(copy_of(weight.address, beside, BESIDE))),
        Kind::Fill => work(Parameters::Fill(sys::CUDA_MEMSET_NODE_PARAMS {
            dst: weight.address,
            pitch: 0,
            value: u32::from(FILLED),
            elementSize: 1,
            width: usize::try_from(weight.bytes).unwrap_or(0).max(8),
            height: 1,
        })),
    }
}

fn copy_of(source: u64, target: u64, bytes: usize) -> sys::CUDA_MEMCPY3D {
    use sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as DEVICE;
    let none = std::ptr::null_mut();
    sys::CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: DEVICE,
        srcHost: none,
        srcDevice: source,
        srcArray: std::ptr::null_mut(),
        reserved0: none,
        srcPitch: bytes,
        srcHeight: 1,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: DEVICE,
        dstHost: none,
        dstDevice: target,
        dstArray: std::ptr::null_mut(),
        reserved1: none,
        dstPitch: bytes,
        dstHeight: 1,
        WidthInBytes: bytes,
        Height: 1,
        Depth: 1,
    }
}
