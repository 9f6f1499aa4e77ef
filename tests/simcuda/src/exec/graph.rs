//! Graphs: nodes with dependencies, and launches that run them in one valid order.
//!
//! A launch runs nodes one after another, which hides a missing edge; so an instantiation compares the memory of all
//! nodes that no path of edges orders.

use super::hazard::Use;
use super::stream::Stream;
use super::work::Work;
use crate::journal::{Detection, journal};
use crate::locks::lock;
use crate::memory::{PAGE, space};
use crate::registry::Registry;
use crate::status::Status;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// One node.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) handle: u64,
    pub(crate) work: Work,
    pub(crate) dependencies: Vec<u64>,
}

/// A graph under construction.
pub(crate) struct Graph {
    pub(crate) handle: u64,
    nodes: Mutex<Vec<Node>>,
    /// Arrays handed out as pointers; they live as long as the graph.
    shown: Mutex<Vec<Box<[u64]>>>,
}

/// Where a node handle leads.
pub(crate) struct NodeHandle {
    pub(crate) handle: u64,
    pub(crate) graph: u64,
}

/// An executable graph.
pub(crate) struct Executable {
    pub(crate) handle: u64,
    nodes: Mutex<Vec<Node>>,
}

pub(crate) static GRAPHS: Registry<Graph> = Registry::new(9);
pub(crate) static NODES: Registry<NodeHandle> = Registry::new(10);
pub(crate) static EXECUTABLES: Registry<Executable> = Registry::new(11);

impl Graph {
    pub(crate) fn create() -> Arc<Self> {
        GRAPHS.insert(|handle| Arc::new(Self { handle, nodes: Mutex::default(), shown: Mutex::default() }))
    }

    /// Adds a node after `dependencies`.
    ///
    /// # Errors
    /// `INVALID_VALUE` when a dependency is not a node of this graph.
    pub(crate) fn add(&self, work: Work, dependencies: &[u64]) -> Result<u64, Status> {
        let mut nodes = lock(&self.nodes);
        if dependencies.iter().any(|wanted| nodes.iter().all(|node| node.handle != *wanted)) {
            return Err(Status::INVALID_VALUE);
        }
        let graph = self.handle;
        let handle = NODES.insert(|handle| Arc::new(NodeHandle { handle, graph })).handle;
        nodes.push(Node { handle, work, dependencies: dependencies.to_vec() });
        Ok(handle)
    }

    /// Adds an edge.
    ///
    /// # Errors
    /// `INVALID_VALUE` when either end is not a node of this graph.
    pub(crate) fn connect(&self, from: u64, to: u64) -> Result<(), Status> {
        let mut nodes = lock(&self.nodes);
        if nodes.iter().all(|node| node.handle != from) {
            return Err(Status::INVALID_VALUE);
        }
        let node = nodes.iter_mut().find(|node| node.handle == to).ok_or(Status::INVALID_VALUE)?;
        node.dependencies.push(from);
        Ok(())
    }

    pub(crate) fn nodes(&self) -> Vec<Node> {
        lock(&self.nodes).clone()
    }

    /// The node of this handle.
    ///
    /// # Errors
    /// `INVALID_VALUE` when it is not in this graph.
    pub(crate) fn node(&self, handle: u64) -> Result<Node, Status> {
        lock(&self.nodes).iter().find(|node| node.handle == handle).cloned().ok_or(Status::INVALID_VALUE)
    }

    /// Replaces what a node does.
    ///
    /// # Errors
    /// `INVALID_VALUE` when it is not in this graph.
    pub(crate) fn replace(&self, handle: u64, work: Work) -> Result<(), Status> {
        let mut nodes = lock(&self.nodes);
        nodes.iter_mut().find(|node| node.handle == handle).ok_or(Status::INVALID_VALUE)?.work = work;
        Ok(())
    }

    /// Keeps an array as long as the graph lives and returns its address.
    pub(crate) fn show(&self, values: Vec<u64>) -> u64 {
        let boxed = values.into_boxed_slice();
        let address = boxed.as_ptr() as u64;
        lock(&self.shown).push(boxed);
        address
    }

    /// Ends the graph and the handles of its nodes.
    pub(crate) fn destroy(&self) {
        for node in lock(&self.nodes).iter() {
            let _ = NODES.remove(node.handle);
        }
    }
}

/// The graph that a node handle belongs to.
///
/// # Errors
/// `INVALID_VALUE` when the node or its graph is gone.
pub(crate) fn graph_of(node: u64) -> Result<Arc<Graph>, Status> {
    let owner = NODES.find(node).ok_or(Status::INVALID_VALUE)?;
    GRAPHS.find(owner.graph).ok_or(Status::INVALID_VALUE)
}

/// The nodes in an order that keeps every edge.
fn sorted(nodes: &[Node]) -> Result<Vec<Node>, Status> {
    let mut left: Vec<&Node> = nodes.iter().collect();
    let mut order: Vec<Node> = Vec::with_capacity(nodes.len());
    let mut placed: HashMap<u64, ()> = HashMap::new();
    while !left.is_empty() {
        let before = left.len();
        left.retain(|node| {
            let ready = node.dependencies.iter().all(|wanted| placed.contains_key(wanted));
            if ready {
                placed.insert(node.handle, ());
                order.push((*node).clone());
            }
            !ready
        });
        if left.len() == before {
            return Err(Status::INVALID_VALUE);
        }
    }
    Ok(order)
}

/// For each node of a sorted list, which earlier ones are ordered before it (one bit each).
fn ancestors(nodes: &[Node]) -> Vec<Vec<u64>> {
    let index: HashMap<u64, usize> = nodes.iter().enumerate().map(|(at, node)| (node.handle, at)).collect();
    let mut all: Vec<Vec<u64>> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let mut mine = vec![0u64; nodes.len().div_ceil(64)];
        for parent in node.dependencies.iter().filter_map(|handle| index.get(handle)) {
            mine[parent / 64] |= 1 << (parent % 64);
            for (bits, theirs) in mine.iter_mut().zip(&all[*parent]) {
                *bits |= theirs;
            }
        }
        all.push(mine);
    }
    all
}

/// What a node does with a stretch of a page: index of the node, first and last byte, the use.
type NodeUse = (usize, u64, u64, Use);

/// Reports nodes that touch the same physical bytes, one of them writing, without a path of edges between them.
fn report_unordered(nodes: &[Node]) {
    let before = ancestors(nodes);
    let mut pages: HashMap<(u64, u64), Vec<NodeUse>> = HashMap::new();
    for (at, node) in nodes.iter().enumerate() {
        for used in node.work.uses() {
            let pieces = space::view().pieces(used.address, used.bytes);
            for piece in pieces {
                let (mut low, end) = (piece.offset, piece.offset + piece.bytes);
                while low < end {
                    let high = ((low / PAGE + 1) * PAGE).min(end);
                    let page = pages.entry((piece.object, low / PAGE)).or_default();
                    for (other, other_low, other_high, theirs) in page.iter() {
                        let ordered = *other == at || before[at][other / 64] >> (other % 64) & 1 == 1;
                        let meets = *other_low < high && low < *other_high;
                        if meets && !ordered && (used.writes || theirs.writes) {
                            let (mine, other) = (node.work.label(), nodes[*other].work.label());
                            let message = format!(
                                "graph nodes {other} at {:#x} and {mine} at {:#x} share bytes and no edge orders them",
                                theirs.address, used.address
                            );
                            journal().detect(Detection::Unordered, &message);
                            return;
                        }
                    }
                    page.push((at, low, high, used));
                    low = high;
                }
            }
        }
    }
}

/// Makes a graph executable.
///
/// # Errors
/// `INVALID_VALUE` when its edges form a circle.
pub(crate) fn instantiate(graph: &Graph) -> Result<u64, Status> {
    let nodes = sorted(&graph.nodes())?;
    report_unordered(&nodes);
    let executable = EXECUTABLES.insert(|handle| Arc::new(Executable { handle, nodes: Mutex::new(nodes) }));
    Ok(executable.handle)
}

impl Executable {
    /// Takes over the parameters of a graph of the same shape.
    ///
    /// # Errors
    /// `GRAPH_EXEC_UPDATE_FAILURE` when the shape differs.
    pub(crate) fn update(&self, graph: &Graph) -> Result<(), Status> {
        let fresh = sorted(&graph.nodes())?;
        let mut nodes = lock(&self.nodes);
        let same = |a: &Node, b: &Node| {
            std::mem::discriminant(&a.work) == std::mem::discriminant(&b.work)
                && a.dependencies.len() == b.dependencies.len()
        };
        if nodes.len() != fresh.len() || !nodes.iter().zip(&fresh).all(|(old, new)| same(old, new)) {
            return Err(Status::GRAPH_EXEC_UPDATE_FAILURE);
        }
        report_unordered(&fresh);
        *nodes = fresh;
        Ok(())
    }

    /// Replaces what one node does.
    ///
    /// # Errors
    /// `INVALID_VALUE` when there is no such node.
    pub(crate) fn replace(&self, node: u64, work: Work) -> Result<(), Status> {
        let mut nodes = lock(&self.nodes);
        nodes.iter_mut().find(|known| known.handle == node).ok_or(Status::INVALID_VALUE)?.work = work;
        Ok(())
    }

    /// Puts all nodes on a stream.
    pub(crate) fn launch(&self, stream: &Arc<Stream>) {
        let nodes = lock(&self.nodes).clone();
        let mut previous = 0;
        for node in nodes {
            let work = match node.work {
                // A launch may overlap its predecessor only where the graph has that very edge.
                Work::Kernel(call) if call.programmatic && node.dependencies != [previous] => {
                    let mut call = (*call).clone();
                    call.programmatic = false;
                    Work::Kernel(Arc::new(call))
                }
                work => work,
            };
            previous = node.handle;
            stream.submit(work, Vec::new());
        }
    }
}
