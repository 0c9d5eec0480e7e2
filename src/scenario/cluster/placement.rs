//! `cluster.pools.*.placement`: zones, nodes, and the ranks of groups on them.

use super::super::provenance::Source;
use super::super::schema::{PlacementRule, Pool, Scenario};
use super::Filling;
use super::pools::{Pools, ServedBy};
use crate::cluster::topology::{Node, Placement, Topology};
use crate::input::InputError;

/// The zone of those who name none.
const ZONE: &str = "zone-0";
/// Zones of a pool, at most.
const MAX_ZONES: usize = 256;

/// How a pool's groups share nodes.
#[derive(Debug, Clone, Copy)]
enum Sharing {
    GroupsANode(u32),
    NodesAGroup(u32),
}

/// Fills and checks the placement of all pools.
pub(super) fn resolve(
    scenario: &mut Scenario,
    pools: &Pools,
    f: &mut Filling<'_>,
) -> Result<Topology, InputError> {
    let mut topology = Topology::default();
    for (i, pool) in scenario.cluster.pools.iter_mut().flatten().enumerate() {
        place(pool, i, &pools.served_by[i], &mut topology, f)?;
    }
    topology
        .check()
        .map_err(|e| f.error("cluster.pools", e.to_string(), "rename one of them"))?;
    Ok(topology)
}

fn place(
    pool: &mut Pool,
    i: usize,
    served: &ServedBy,
    topology: &mut Topology,
    f: &mut Filling<'_>,
) -> Result<(), InputError> {
    let path = format!("cluster.pools.{i}.placement");
    let rule = pool.placement.get_or_insert_default();
    let one = vec![ZONE.to_owned()];
    let names = f.fill(&path, "zones", &mut rule.zones, Source::Default, one);
    check_zones(&names, &format!("{path}.zones"), f)?;
    let sharing = sharing(rule, &path, served, f)?;
    let zones: Vec<u32> = names.iter().map(|name| zone_number(name, topology)).collect();
    let first = topology.nodes.len() as u32;
    let zone_of = |turn: u32| zones[turn as usize % zones.len()];
    let (nodes, ranks_of): (u32, Box<dyn Fn(u32) -> Vec<u32>>) = match sharing {
        Sharing::GroupsANode(n) => {
            let devices = served.devices as usize;
            (
                pool.groups.div_ceil(n),
                Box::new(move |g| vec![first + g / n; devices]),
            )
        }
        Sharing::NodesAGroup(n) => {
            let a_node = served.devices.div_ceil(n);
            let devices = served.devices;
            let node = move |g: u32, rank: u32| first + g * n + rank / a_node;
            (
                pool.groups * n,
                Box::new(move |g| (0..devices).map(|r| node(g, r)).collect()),
            )
        }
    };
    for node in 0..nodes {
        let turn = match sharing {
            Sharing::GroupsANode(_) => node,
            Sharing::NodesAGroup(n) => node / n,
        };
        topology.nodes.push(Node {
            name: format!("{}/node-{node}", served.name),
            zone: zone_of(turn),
        });
    }
    for group in 0..pool.groups {
        topology.groups.push(Placement {
            name: format!("{}/{group}", served.name),
            ranks: ranks_of(group),
        });
    }
    Ok(())
}

fn check_zones(names: &[String], path: &str, f: &Filling<'_>) -> Result<(), InputError> {
    let twice = |i: usize| names[..i].contains(&names[i]);
    if names.is_empty() || names.len() > MAX_ZONES {
        let mend = format!("allowed: 1 to {MAX_ZONES} names; leave it out for one zone");
        return Err(f.error(path, format!("found {} zones", names.len()), mend));
    }
    if let Some(i) = (0..names.len()).find(|&i| names[i].is_empty() || twice(i)) {
        let found = format!("found the name '{}' at place {i}", names[i]);
        return Err(f.error(path, found, "each zone needs a name of its own"));
    }
    Ok(())
}

fn zone_number(name: &str, topology: &mut Topology) -> u32 {
    let known = topology.zones.iter().position(|z| z == name);
    known.unwrap_or_else(|| {
        topology.zones.push(name.to_owned());
        topology.zones.len() - 1
    }) as u32
}

/// As stated, else as the instance holds devices, else a node a group.
fn sharing(
    rule: &mut PlacementRule,
    path: &str,
    served: &ServedBy,
    f: &mut Filling<'_>,
) -> Result<Sharing, InputError> {
    f.blame()
        .at_least_one(&format!("{path}.groups_per_node"), rule.groups_per_node)?;
    f.blame()
        .at_least_one(&format!("{path}.nodes_per_group"), rule.nodes_per_group)?;
    match (rule.groups_per_node, rule.nodes_per_group) {
        // Resolved scenarios say nodes_per_group: 1 nowhere, so that both stand only where a user wrote both.
        (Some(_), Some(_)) => Err(f.error(
            &format!("{path}.nodes_per_group"),
            "both groups_per_node and nodes_per_group are given",
            "keep one of the two",
        )),
        (Some(n), None) => Ok(Sharing::GroupsANode(n)),
        (None, Some(n)) if n > served.devices => Err(f.error(
            &format!("{path}.nodes_per_group"),
            format!("found {n}, but a group has {} devices", served.devices),
            "allowed: at most one node a device",
        )),
        (None, Some(n)) => Ok(Sharing::NodesAGroup(n)),
        (None, None) => {
            let count = served
                .instance
                .as_ref()
                .map_or(served.devices, |i| i.count.value.max(1));
            let from = match &served.instance {
                Some(instance) => Source::Derived(format!("{} devices on {}", count, instance.name)),
                None => Source::Default,
            };
            if served.devices <= count {
                let n = count / served.devices.max(1);
                f.fill(path, "groups_per_node", &mut rule.groups_per_node, from, n);
                Ok(Sharing::GroupsANode(n))
            } else {
                let n = served.devices.div_ceil(count);
                f.fill(path, "nodes_per_group", &mut rule.nodes_per_group, from, n);
                Ok(Sharing::NodesAGroup(n))
            }
        }
    }
}
