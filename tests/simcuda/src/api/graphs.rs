//! Graphs: building, instantiating, launching.
#![expect(unsafe_code, reason = "exports under fixed names")]

use super::copies;
use super::launches::capture_arguments;
use crate::abi::{
    Copy3d, CopyNodeParameters, InstantiateParameters, KernelNodeParameters, MemsetNodeParameters, NODE_COPY,
    NODE_KERNEL, NODE_SET, NodeParameters,
};
use crate::call::{exports, stream_exports};
use crate::exec::graph::{self, EXECUTABLES, GRAPHS, Graph};
use crate::exec::work::{HostCall, Work};
use crate::exec::{NullStream, capture, stream_of};
use crate::kernels::call::KernelCall;
use crate::kernels::layout::layout;
use crate::kernels::module::launchable;
use crate::pointer::{In, Out};
use crate::status::{Done, Status};
use std::sync::Arc;

exports! {
    Init cuGraphCreate(handle: Out<u64>, flags: u32) => create;
    Init cuGraphDestroy(handle: u64) => destroy;
    Init cuGraphAddEmptyNode(node: Out<u64>, handle: u64, after: In<u64>, count: usize) => add_empty;
    Init cuGraphAddKernelNode_v2(node: Out<u64>, handle: u64, after: In<u64>, count: usize, parameters: In<KernelNodeParameters>) => add_kernel;
    Init cuGraphAddMemcpyNode(node: Out<u64>, handle: u64, after: In<u64>, count: usize, copy: In<Copy3d>, context: u64) => add_copy;
    Init cuGraphAddMemsetNode(node: Out<u64>, handle: u64, after: In<u64>, count: usize, set: In<MemsetNodeParameters>, context: u64) => add_set;
    Init cuGraphAddNode(node: Out<u64>, handle: u64, after: In<u64>, count: usize, parameters: In<NodeParameters>) => add_any;
    Init cuGraphAddNode_v2(node: Out<u64>, handle: u64, after: In<u64>, edges: In<u64>, count: usize, parameters: In<NodeParameters>) => add_any_v2;
    Init cuGraphAddHostNode(node: Out<u64>, handle: u64, after: In<u64>, count: usize, call: In<[u64; 2]>) => add_host;
    Init cuGraphAddDependencies(handle: u64, from: In<u64>, to: In<u64>, count: usize) => connect;
    Init cuGraphAddDependencies_v2(handle: u64, from: In<u64>, to: In<u64>, edges: In<u64>, count: usize) => connect_v2;
    Init cuGraphGetNodes(handle: u64, nodes: Out<u64>, count: Out<usize>) => nodes;
    Init cuGraphGetEdges(handle: u64, from: Out<u64>, to: Out<u64>, count: Out<usize>) => edges;
    Init cuGraphGetEdges_v2(handle: u64, from: Out<u64>, to: Out<u64>, data: Out<u64>, count: Out<usize>) => edges_v2;
    Init cuGraphNodeGetDependencies(node: u64, list: Out<u64>, count: Out<usize>) => dependencies;
    Init cuGraphNodeGetDependencies_v2(node: u64, list: Out<u64>, data: Out<u64>, count: Out<usize>) => dependencies_v2;
    Init cuGraphNodeGetType(node: u64, kind: Out<u32>) => node_type;
    Init cuGraphKernelNodeGetParams_v2(node: u64, parameters: Out<KernelNodeParameters>) => kernel_parameters;
    Init cuGraphKernelNodeSetParams_v2(node: u64, parameters: In<KernelNodeParameters>) => set_kernel_parameters;
    Init cuGraphExecKernelNodeSetParams_v2(executable: u64, node: u64, parameters: In<KernelNodeParameters>) => set_executable_parameters;
    Init cuGraphMemcpyNodeSetParams(node: u64, copy: In<Copy3d>) => set_copy;
    Init cuGraphMemsetNodeSetParams(node: u64, set: In<MemsetNodeParameters>) => set_fill;
    Init cuGraphNodeSetParams(node: u64, parameters: In<NodeParameters>) => set_any;
    Init cuGraphExecMemcpyNodeSetParams(executable: u64, node: u64, copy: In<Copy3d>, context: u64) => set_executable_copy;
    Init cuGraphExecMemsetNodeSetParams(executable: u64, node: u64, set: In<MemsetNodeParameters>, context: u64) => set_executable_fill;
    Init cuGraphExecNodeSetParams(executable: u64, node: u64, parameters: In<NodeParameters>) => set_executable_any;
    Init cuGraphInstantiate_v2(executable: Out<u64>, handle: u64, node: Out<u64>, log: Out<u8>, capacity: usize) => instantiate_with_log;
    Init cuGraphInstantiateWithFlags(executable: Out<u64>, handle: u64, flags: u64) => instantiate;
    Init cuGraphExecUpdate_v2(executable: u64, handle: u64, result: Out<[u64; 3]>) => update;
    Init cuGraphExecGetFlags(executable: u64, flags: Out<u64>) => executable_flags;
    Init cuGraphExecDestroy(executable: u64) => destroy_executable;
}

stream_exports! {
    cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz(executable: Out<u64>, handle: u64, parameters: Out<InstantiateParameters>) => instantiate_with_parameters;
    cuGraphUpload, cuGraphUpload_ptsz(executable: u64, stream: u64) => upload;
    cuGraphLaunch, cuGraphLaunch_ptsz(executable: u64, stream: u64) => launch;
}

fn create(handle: Out<u64>, flags: u32) -> Done {
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    handle.set(Graph::create().handle)
}

fn find(handle: u64) -> Result<Arc<Graph>, Status> {
    GRAPHS.find(handle).ok_or(Status::INVALID_VALUE)
}

fn destroy(handle: u64) -> Done {
    GRAPHS.remove(handle).map_err(|_| Status::INVALID_VALUE)?.destroy();
    Ok(())
}

fn add(node: Out<u64>, handle: u64, after: In<u64>, count: usize, work: Work) -> Done {
    node.set(find(handle)?.add(work, &after.list(count)?)?)
}

fn add_empty(node: Out<u64>, handle: u64, after: In<u64>, count: usize) -> Done {
    add(node, handle, after, count, Work::Wait)
}

/// A kernel node's work from its parameters.
fn kernel_work(parameters: In<KernelNodeParameters>) -> Result<Work, Status> {
    let given = parameters.get()?;
    let function = if given.function != 0 { given.function } else { given.kernel };
    let kernel = launchable(function)?;
    Ok(Work::Kernel(Arc::new(KernelCall {
        kernel,
        arguments: capture_arguments(kernel, In::at(given.parameters), In::at(given.extra))?,
        programmatic: false,
        grid: given.grid,
        block: given.block,
        shared: given.shared,
        function,
    })))
}

fn add_kernel(
    node: Out<u64>,
    handle: u64,
    after: In<u64>,
    count: usize,
    parameters: In<KernelNodeParameters>,
) -> Done {
    add(node, handle, after, count, kernel_work(parameters)?)
}

fn copy_work(copy: In<Copy3d>) -> Result<Work, Status> {
    Ok(Work::Copy(Arc::new(copies::job(&copies::parts_3d(&copy.get()?)?, true)?)))
}

fn set_work(set: In<MemsetNodeParameters>) -> Result<Work, Status> {
    let given = set.get()?;
    if !matches!(given.element_bytes, 1 | 2 | 4) {
        return Err(Status::INVALID_VALUE);
    }
    let (unit, width, height) = (u64::from(given.element_bytes), given.width as u64, given.height as u64);
    let job = copies::set_job(given.target, given.pitch as u64, given.value, unit, width, height)?;
    Ok(Work::Set(Arc::new(job)))
}

/// The work of a node whose parameters name its kind.
fn any_work(parameters: In<NodeParameters>) -> Result<Work, Status> {
    let given = parameters.get()?;
    let detail = given.detail.as_ptr() as u64;
    match given.kind {
        NODE_KERNEL => kernel_work(In::at(detail)),
        NODE_COPY => copy_work(In::at(detail + std::mem::offset_of!(CopyNodeParameters, copy) as u64)),
        NODE_SET => set_work(In::at(detail)),
        _ => Err(Status::NOT_SUPPORTED),
    }
}

fn add_copy(node: Out<u64>, handle: u64, after: In<u64>, count: usize, copy: In<Copy3d>, _: u64) -> Done {
    add(node, handle, after, count, copy_work(copy)?)
}

fn add_set(
    node: Out<u64>,
    handle: u64,
    after: In<u64>,
    count: usize,
    set: In<MemsetNodeParameters>,
    _: u64,
) -> Done {
    add(node, handle, after, count, set_work(set)?)
}

fn add_any(
    node: Out<u64>,
    handle: u64,
    after: In<u64>,
    count: usize,
    parameters: In<NodeParameters>,
) -> Done {
    add(node, handle, after, count, any_work(parameters)?)
}

fn add_any_v2(
    node: Out<u64>,
    handle: u64,
    after: In<u64>,
    _: In<u64>,
    count: usize,
    parameters: In<NodeParameters>,
) -> Done {
    add_any(node, handle, after, count, parameters)
}

fn add_host(node: Out<u64>, handle: u64, after: In<u64>, count: usize, call: In<[u64; 2]>) -> Done {
    let [function, data] = call.get()?;
    if function == 0 {
        return Err(Status::INVALID_VALUE);
    }
    add(node, handle, after, count, Work::Host(HostCall::Function { function, data }))
}

fn connect(handle: u64, from: In<u64>, to: In<u64>, count: usize) -> Done {
    let graph = find(handle)?;
    for (from, to) in from.list(count)?.into_iter().zip(to.list(count)?) {
        graph.connect(from, to)?;
    }
    Ok(())
}

fn connect_v2(handle: u64, from: In<u64>, to: In<u64>, _: In<u64>, count: usize) -> Done {
    connect(handle, from, to, count)
}

/// Fills an array of the caller as all these queries do: null asks for the length, the rest of a long array is zeroed.
fn fill(list: Out<u64>, count: Out<usize>, values: &[u64]) -> Done {
    if !list.is_null() {
        let room = count.current()?;
        for index in 0..room {
            list.set_at(index, values.get(index).copied().unwrap_or(0));
        }
        return count.set(values.len().min(room));
    }
    count.set(values.len())
}

fn nodes(handle: u64, list: Out<u64>, count: Out<usize>) -> Done {
    let handles: Vec<u64> = find(handle)?.nodes().iter().map(|node| node.handle).collect();
    fill(list, count, &handles)
}

fn edges(handle: u64, from: Out<u64>, to: Out<u64>, count: Out<usize>) -> Done {
    let nodes = find(handle)?.nodes();
    let pairs = || nodes.iter().flat_map(|node| node.dependencies.iter().map(|from| (*from, node.handle)));
    let (sources, targets): (Vec<u64>, Vec<u64>) = pairs().unzip();
    if !from.is_null() && !to.is_null() {
        let room = count.current()?;
        for index in 0..room {
            to.set_at(index, targets.get(index).copied().unwrap_or(0));
        }
    }
    fill(from, count, &sources)
}

fn edges_v2(handle: u64, from: Out<u64>, to: Out<u64>, data: Out<u64>, count: Out<usize>) -> Done {
    let room = if from.is_null() { 0 } else { count.current()? };
    edges(handle, from, to, count)?;
    for index in 0..room {
        data.set_at(index, 0);
    }
    Ok(())
}

fn dependencies(node: u64, list: Out<u64>, count: Out<usize>) -> Done {
    fill(list, count, &graph::graph_of(node)?.node(node)?.dependencies)
}

fn dependencies_v2(node: u64, list: Out<u64>, data: Out<u64>, count: Out<usize>) -> Done {
    let room = if list.is_null() { 0 } else { count.current()? };
    dependencies(node, list, count)?;
    for index in 0..room {
        data.set_at(index, 0);
    }
    Ok(())
}

fn node_type(node: u64, kind: Out<u32>) -> Done {
    // CU_GRAPH_NODE_TYPE_*.
    kind.set(match graph::graph_of(node)?.node(node)?.work {
        Work::Kernel(_) => 0,
        Work::Copy(_) => 1,
        Work::Set(_) => 2,
        Work::Host(_) => 3,
        Work::Wait => 5,
        Work::Record(_) => 7,
    })
}

fn kernel_parameters(node: u64, parameters: Out<KernelNodeParameters>) -> Done {
    let graph = graph::graph_of(node)?;
    let Work::Kernel(call) = graph.node(node)?.work else { return Err(Status::INVALID_VALUE) };
    // A copy of the arguments in whole words, so that the addresses stay valid as long as the graph.
    let mut words: Vec<u64> = Vec::new();
    for chunk in call.arguments.bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        words.push(u64::from_le_bytes(word));
    }
    let base = graph.show(words);
    let addresses = layout(call.kernel.parameters).iter().map(|(offset, _)| base + *offset as u64).collect();
    let is_kernel = crate::kernels::module::KERNELS.find(call.function).is_some();
    parameters.set(KernelNodeParameters {
        function: if is_kernel { 0 } else { call.function },
        grid: call.grid,
        block: call.block,
        shared: call.shared,
        parameters: graph.show(addresses),
        extra: 0,
        kernel: if is_kernel { call.function } else { 0 },
        context: 0,
    })
}

fn set_kernel_parameters(node: u64, parameters: In<KernelNodeParameters>) -> Done {
    graph::graph_of(node)?.replace(node, kernel_work(parameters)?)
}

fn set_executable_parameters(executable: u64, node: u64, parameters: In<KernelNodeParameters>) -> Done {
    EXECUTABLES.get(executable)?.replace(node, kernel_work(parameters)?)
}

fn set_copy(node: u64, copy: In<Copy3d>) -> Done {
    graph::graph_of(node)?.replace(node, copy_work(copy)?)
}

fn set_fill(node: u64, set: In<MemsetNodeParameters>) -> Done {
    graph::graph_of(node)?.replace(node, set_work(set)?)
}

fn set_any(node: u64, parameters: In<NodeParameters>) -> Done {
    graph::graph_of(node)?.replace(node, any_work(parameters)?)
}

fn set_executable_copy(executable: u64, node: u64, copy: In<Copy3d>, _: u64) -> Done {
    EXECUTABLES.get(executable)?.replace(node, copy_work(copy)?)
}

fn set_executable_fill(executable: u64, node: u64, set: In<MemsetNodeParameters>, _: u64) -> Done {
    EXECUTABLES.get(executable)?.replace(node, set_work(set)?)
}

fn set_executable_any(executable: u64, node: u64, parameters: In<NodeParameters>) -> Done {
    EXECUTABLES.get(executable)?.replace(node, any_work(parameters)?)
}

fn instantiate(executable: Out<u64>, handle: u64, _: u64) -> Done {
    executable.set(graph::instantiate(&*find(handle)?)?)
}

fn instantiate_with_log(
    executable: Out<u64>,
    handle: u64,
    node: Out<u64>,
    log: Out<u8>,
    capacity: usize,
) -> Done {
    node.set_if_wanted(0);
    if capacity > 0 {
        log.set_if_wanted(0);
    }
    instantiate(executable, handle, 0)
}

fn instantiate_with_parameters(
    _: NullStream,
    executable: Out<u64>,
    handle: u64,
    parameters: Out<InstantiateParameters>,
) -> Done {
    let mut given = parameters.current()?;
    instantiate(executable, handle, given.flags)?;
    given.result = 0;
    given.error_node = 0;
    parameters.set(given)
}

fn update(executable: u64, handle: u64, result: Out<[u64; 3]>) -> Done {
    let outcome = EXECUTABLES.get(executable)?.update(&*find(handle)?);
    // CU_GRAPH_EXEC_UPDATE_SUCCESS or ..._ERROR_TOPOLOGY_CHANGED, then the nodes at fault.
    result.set_if_wanted([if outcome.is_ok() { 0 } else { 2 }, 0, 0]);
    outcome
}

fn executable_flags(executable: u64, flags: Out<u64>) -> Done {
    EXECUTABLES.get(executable)?;
    flags.set(0)
}

fn destroy_executable(executable: u64) -> Done {
    EXECUTABLES.remove(executable).map(|_| ())
}

fn upload(null: NullStream, executable: u64, stream: u64) -> Done {
    stream_of(null, stream)?;
    EXECUTABLES.get(executable).map(|_| ())
}

fn launch(null: NullStream, executable: u64, stream: u64) -> Done {
    let stream = stream_of(null, stream)?;
    let executable = EXECUTABLES.get(executable)?;
    // Launching a graph inside a capture makes a child graph node, which does not exist here.
    capture::forbid_on(&stream)?;
    capture::check_implicit(&stream)?;
    executable.launch(&stream);
    Ok(())
}
