//! Rules of policy routing: which table is asked for which packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::{DecodeError, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use serde::{Deserialize, Serialize};

use crate::connection::{Connection, encode};
use crate::error::Result;
use crate::wire::{AF_INET, AF_INET6, attributes, u8_at};

const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_GETRULE: u16 = 34;

const HEADER: usize = 12;
const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_OIFNAME: u16 = 17;
/// The action "ask a table" (`FR_ACT_TO_TBL`).
const TO_TABLE: u8 = 1;

/// A rule that sends packets to a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Whether it is for IPv6.
    pub is_ipv6: bool,
    /// The priority: rules with a smaller number come first.
    pub priority: u32,
    /// The source network; `None` for all.
    pub from: Option<IpNet>,
    /// The destination network; `None` for all.
    pub to: Option<IpNet>,
    /// The interface by which a packet came.
    pub input: Option<String>,
    /// The interface that a local socket is bound to.
    pub output: Option<String>,
    /// The firewall mark, with its mask.
    pub mark: Option<(u32, u32)>,
    /// The table. `None` if the rule does something else than asking a table.
    pub table: Option<u32>,
}

/// A rule to be added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewRule {
    /// Whether it is for IPv6.
    pub is_ipv6: bool,
    /// The priority; `None` puts it before all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// The source network; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<IpNet>,
    /// The destination network; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<IpNet>,
    /// The interface by which a packet came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The interface that a local socket is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The firewall mark, with its mask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<(u32, u32)>,
    /// The table.
    pub table: u32,
}

impl Connection {
    /// Returns the rules for IPv4 and IPv6, in the order of their priorities for each.
    pub fn rules(&mut self) -> Result<Vec<Rule>> {
        let mut rules = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = RuleMessage::default();
            message.header.family = family;
            match self.socket.dump(format_args!("list rules"), RTM_GETRULE, &encode(&message), decode) {
                Ok(found) => rules.extend(found),
                // A kernel without IPv6 or without policy routing.
                Err(error) if error.is_unsupported() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(rules)
    }

    /// Adds a rule. The same one that is there already is an error ([`already_exists`](crate::Error::already_exists)).
    pub fn add_rule(&mut self, rule: &NewRule) -> Result<()> {
        let operation = format_args!("add rule {rule}");
        self.socket.change(operation, RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, &encode(&message(rule)))
    }

    /// Deletes a rule.
    pub fn delete_rule(&mut self, rule: &NewRule) -> Result<()> {
        self.socket.change(format_args!("delete rule {rule}"), RTM_DELRULE, 0, &encode(&message(rule)))
    }
}

impl std::fmt::Display for NewRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(priority) = self.priority {
            write!(f, "{priority}: ")?;
        }
        match self.from {
            Some(from) => write!(f, "from {from}")?,
            None => f.write_str("from all")?,
        }
        if let Some(to) = self.to {
            write!(f, " to {to}")?;
        }
        if let Some(input) = &self.input {
            write!(f, " iif {input}")?;
        }
        if let Some(output) = &self.output {
            write!(f, " oif {output}")?;
        }
        if let Some((mark, mask)) = self.mark {
            write!(f, " fwmark {mark:#x}/{mask:#x}")?;
        }
        write!(f, " table {}", self.table)
    }
}

fn message(rule: &NewRule) -> RuleMessage {
    let mut message = RuleMessage::default();
    let header = &mut message.header;
    header.family = if rule.is_ipv6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
    header.action = RuleAction::ToTable;
    // A number that does not fit is in the attribute alone.
    header.table = u8::try_from(rule.table).unwrap_or_default();
    header.src_len = rule.from.map_or(0, |net| net.prefix_len());
    header.dst_len = rule.to.map_or(0, |net| net.prefix_len());
    let attributes = &mut message.attributes;
    attributes.push(RuleAttribute::Table(rule.table));
    attributes.extend(rule.from.map(|net| RuleAttribute::Source(net.network())));
    attributes.extend(rule.to.map(|net| RuleAttribute::Destination(net.network())));
    attributes.extend(rule.priority.map(RuleAttribute::Priority));
    attributes.extend(rule.input.clone().map(RuleAttribute::Iifname));
    attributes.extend(rule.output.clone().map(RuleAttribute::Oifname));
    if let Some((mark, mask)) = rule.mark {
        attributes.push(RuleAttribute::FwMark(mark));
        attributes.push(RuleAttribute::FwMask(mask));
    }
    message
}

/// Reads a rule. `None` for those of other protocols than IP.
pub(crate) fn decode(payload: &[u8]) -> Result<Option<Rule>, DecodeError> {
    let everything: IpAddr = match u8_at(payload, 0)? {
        AF_INET => Ipv4Addr::UNSPECIFIED.into(),
        AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return Ok(None),
    };
    let mut from = everything;
    let mut to = everything;
    let mut mark = None;
    let mut mask = None;
    let mut table = u32::from(u8_at(payload, 4)?);
    let mut rule = Rule {
        is_ipv6: everything.is_ipv6(),
        priority: 0,
        from: None,
        to: None,
        input: None,
        output: None,
        mark: None,
        table: None,
    };
    for attribute in attributes(payload, HEADER) {
        let attribute = attribute?;
        match attribute.kind {
            FRA_DST => to = attribute.ip()?,
            FRA_SRC => from = attribute.ip()?,
            FRA_IIFNAME => rule.input = Some(attribute.text()),
            FRA_OIFNAME => rule.output = Some(attribute.text()),
            FRA_PRIORITY => rule.priority = attribute.u32()?,
            FRA_FWMARK => mark = Some(attribute.u32()?),
            FRA_FWMASK => mask = Some(attribute.u32()?),
            FRA_TABLE => table = attribute.u32()?,
            _ => {}
        }
    }
    rule.to = net(to, u8_at(payload, 1)?)?;
    rule.from = net(from, u8_at(payload, 2)?)?;
    rule.mark = mark.map(|mark| (mark, mask.unwrap_or(u32::MAX)));
    rule.table = (u8_at(payload, 7)? == TO_TABLE).then_some(table);
    Ok(Some(rule))
}

fn net(address: IpAddr, prefix: u8) -> Result<Option<IpNet>, DecodeError> {
    let net =
        IpNet::new(address, prefix).map_err(|error| DecodeError::from(format!("prefix length {prefix}: {error}")))?;
    Ok(Some(net).filter(|net| net.prefix_len() > 0))
}
