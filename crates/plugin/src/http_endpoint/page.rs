//! The page `/`: one instance of a driver for people. Checks, the last errors, the claims that hold devices, what is published.
//!
//! It names claims, pods and devices, so not everyone gets it ([`access`](super::access)). Names and errors can be anything, so all
//! text is escaped ([`html`]), and the page has neither scripts nor links to elsewhere. Everything is from memory. The page has a
//! limit: it says what is left out.

mod html;
#[cfg(test)]
mod tests;

use std::time::SystemTime;

use drakkar_client::ClaimRef;
use drakkar_slices::PoolOverview;

use self::html::{Html, Text};
use super::pages::{Check, PATHS, Pages};
use super::zpages::{rfc3339, uptime};
use crate::health::HealthStatus;
use crate::ledger::{HeldClaim, HeldState};
use crate::recent_errors::RecentError;
use crate::store::DeviceUse;

/// The page has at most about this many bytes. The last row may exceed it.
const MAX_BYTES: usize = 400 * 1024;
const MAX_CLAIMS: usize = 200;
const MAX_POOLS: usize = 50;
/// The number of devices by name, in all pools.
const MAX_DEVICES: usize = 300;
/// The number of devices by name in one claim.
const MAX_CLAIM_DEVICES: usize = 16;
/// The number of devices that are not healthy.
const MAX_UNHEALTHY: usize = 50;

const STYLE: &str = include_str!("page/style.css");

impl Pages {
    /// Renders the page. Locks what the driver uses only to copy what is shown.
    pub(super) fn overview(&self, now: SystemTime) -> String {
        let mut html = Html::with_limit(MAX_BYTES);
        let driver = Text(self.driver.as_str());
        html.add(format_args!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{driver}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
        ));
        self.add_header(&mut html, now);
        html.add(format_args!("<main>\n"));
        self.add_checks(&mut html);
        self.add_errors(&mut html);
        self.add_claims(&mut html);
        self.add_unhealthy(&mut html);
        self.add_pools(&mut html);
        self.add_settings(&mut html);
        html.add(format_args!("</main>\n<footer>\n<p>"));
        for path in PATHS.iter().filter(|path| **path != "/") {
            let query = if *path == "/readyz" || *path == "/livez" { "?verbose" } else { "" };
            html.add(format_args!("<a href=\"{path}{query}\">{path}</a>\n"));
        }
        html.add(format_args!("</p>\n<p>As of {}</p>\n</footer>\n</body>\n</html>\n", rfc3339(now)));
        html.finish()
    }

    fn add_header(&self, html: &mut Html, now: SystemTime) {
        let started = self.metrics.started();
        html.add(format_args!("<header>\n<h1>{}</h1>\n", Text(self.driver.as_str())));
        if let Some(node) = &self.node {
            html.add(format_args!("<p>on node <b>{}</b></p>\n", Text(node)));
        }
        html.add(format_args!(
            "<p class=\"soft\">version {}, up {} since {}</p>\n</header>\n",
            Text(&self.version),
            uptime(started, now),
            rfc3339(started),
        ));
    }

    fn add_checks(&self, html: &mut Html) {
        html.add(format_args!("<section>\n<h2>Checks</h2>\n<ul class=\"checks\">\n"));
        for check in Check::ALL {
            let name = check.name();
            match check.run(self) {
                Ok(()) => html.add(format_args!("<li><span class=\"badge good\">ok</span> {name}</li>\n")),
                Err(error) => html.add(format_args!(
                    "<li><span class=\"badge bad\">failed</span> {name}: {}</li>\n",
                    Text(&error.to_string())
                )),
            }
        }
        html.add(format_args!("</ul>\n</section>\n"));
    }

    fn add_errors(&self, html: &mut Html) {
        let errors = self.recent.list();
        html.add(format_args!("<section>\n<h2>Last errors</h2>\n"));
        if errors.is_empty() {
            html.add(format_args!("<p class=\"soft\">None since the start.</p>\n</section>\n"));
            return;
        }
        start_table(html, "wide", &["Time", "Operation", "Error"]);
        html.rows("errors", &errors, errors.len(), |html, error| {
            let RecentError { operation, claim, text, first, last, count } = error;
            html.add(format_args!("<tr><td data-name=\"Time\"><time>{}</time>", rfc3339(*last)));
            if *count > 1 {
                html.add(format_args!(
                    "<br><span class=\"soft\">{count} times since <time>{}</time></span>",
                    rfc3339(*first)
                ));
            }
            html.add(format_args!("</td><td data-name=\"Operation\">{operation}"));
            if let Some(claim) = claim {
                html.add(format_args!("<br><span class=\"soft\">{}</span>", Text(claim)));
            }
            html.add(format_args!("</td><td data-name=\"Error\">{}</td></tr>\n", Text(text)));
        });
        html.add(format_args!("</tbody>\n</table>\n</section>\n"));
    }

    fn add_claims(&self, html: &mut Html) {
        let (claims, total) = self.ledger.held_claims(MAX_CLAIMS);
        html.add(format_args!("<section>\n<h2>Claims <small>{total} with devices</small></h2>\n"));
        if claims.is_empty() {
            html.add(format_args!("<p class=\"soft\">No claim has devices here.</p>\n</section>\n"));
            return;
        }
        start_table(html, "even", &["Claim", "Pods", "Devices", "Metadata", "Since"]);
        html.rows("claims", &claims, total, |html, held| self.add_claim(html, held));
        html.add(format_args!("</tbody>\n</table>\n</section>\n"));
    }

    fn add_claim(&self, html: &mut Html, held: &HeldClaim) {
        let HeldClaim { claim, state, since, pods, devices } = held;
        html.add(format_args!("<tr><td data-name=\"Claim\">{}", Text(&short_name(claim))));
        match state {
            HeldState::Prepared => {}
            HeldState::Unfinished => html.add(format_args!(" <span class=\"badge wait\">not prepared</span>")),
        }
        html.add(format_args!("</td><td data-name=\"Pods\">"));
        if pods.names.is_empty() {
            html.add(format_args!("<span class=\"soft\">unknown</span>"));
        }
        add_list(html, &pods.names, pods.names.len() + pods.more, |html, pod| html.add(format_args!("{}", Text(pod))));
        html.add(format_args!("</td><td data-name=\"Devices\">"));
        let shown = devices.get(..MAX_CLAIM_DEVICES).unwrap_or(devices);
        add_list(html, shown, devices.len(), |html, DeviceUse { pool, device, share_id }| {
            html.add(format_args!("{}/{}", Text(pool), Text(device)));
            if let Some(share) = share_id {
                html.add(format_args!(" <span class=\"soft\">share {}</span>", Text(share)));
            }
        });
        html.add(format_args!("</td><td data-name=\"Metadata\">"));
        let files = self.store.metadata_files(&claim.uid);
        if files.is_empty() {
            html.add(format_args!("<span class=\"soft\">none</span>"));
        }
        add_list(html, &files, files.len(), |html, (request, file)| {
            html.add(format_args!("{}: ", Text(request.as_str())));
            match file.generation {
                Some(generation) => html.add(format_args!("generation {generation}")),
                None => html.add(format_args!("<span class=\"badge wait\">not written yet</span>")),
            }
        });
        html.add(format_args!("</td><td data-name=\"Since\">"));
        match since {
            Some(since) => html.add(format_args!("<time>{}</time>", rfc3339(*since))),
            None => html.add(format_args!("<span class=\"soft\">before the start</span>")),
        }
        html.add(format_args!("</td></tr>\n"));
    }

    /// Adds the devices that are unhealthy, or of which nothing is known any more.
    fn add_unhealthy(&self, html: &mut Html) {
        let Some(health) = &self.health else { return };
        let (devices, total) = health.upgrade().map(|health| health.not_healthy(MAX_UNHEALTHY)).unwrap_or_default();
        if total == 0 {
            return;
        }
        html.add(format_args!("<section>\n<h2>Devices that are not healthy <small>{total}</small></h2>\n"));
        start_table(html, "wide", &["Device", "Health", "Message"]);
        html.rows("devices", &devices, total, |html, device| {
            let badge = match device.health {
                HealthStatus::Unhealthy => "<span class=\"badge bad\">unhealthy</span>",
                HealthStatus::Unknown | HealthStatus::Healthy => "<span class=\"badge wait\">unknown</span>",
            };
            html.add(format_args!(
                "<tr><td data-name=\"Device\">{}/{}</td><td data-name=\"Health\">{badge}</td>\
                 <td data-name=\"Message\">{}</td></tr>\n",
                Text(&device.pool_name),
                Text(&device.device_name),
                Text(&device.message),
            ));
        });
        html.add(format_args!("</tbody>\n</table>\n</section>\n"));
    }

    fn add_pools(&self, html: &mut Html) {
        let (pools, total) = self.publishing.pools(MAX_POOLS, MAX_DEVICES);
        html.add(format_args!(
            "<section>\n<h2>Published devices <small>{}</small></h2>\n",
            Text(&self.publishing.line())
        ));
        if pools.is_empty() {
            html.add(format_args!("<p class=\"soft\">The driver has published nothing.</p>\n</section>\n"));
            return;
        }
        start_table(html, "wide", &["Pool", "Slices", "Generation", "Devices"]);
        html.rows("pools", &pools, total, |html, pool| self.add_pool(html, pool));
        html.add(format_args!("</tbody>\n</table>\n</section>\n"));
    }

    fn add_pool(&self, html: &mut Html, pool: &PoolOverview) {
        let PoolOverview { name, slices, generation, devices, device_names, problem } = pool;
        html.add(format_args!("<tr><td data-name=\"Pool\">{}", Text(name)));
        if let Some(problem) = problem {
            html.add(format_args!(
                " <span class=\"badge bad\">failing</span><br><span class=\"soft\">{problem}</span>"
            ));
        }
        html.add(format_args!(
            "</td><td data-name=\"Slices\">{slices}</td><td data-name=\"Generation\">{generation}</td>\
             <td data-name=\"Devices\">{devices}"
        ));
        let holders = self.ledger.holders_of(name, device_names);
        html.add(format_args!("<ul class=\"devices\">\n"));
        for (device, holders) in device_names.iter().zip(holders) {
            html.add(format_args!("<li>{}", Text(device)));
            if let Some(holder) = holders.first() {
                html.add(format_args!(" <span class=\"soft\">{}", Text(&short_name(holder))));
                if holders.len() > 1 {
                    html.add(format_args!(" and {} more", holders.len() - 1));
                }
                html.add(format_args!("</span>"));
            }
            html.add(format_args!("</li>\n"));
        }
        let left_out = devices - device_names.len();
        if left_out > 0 {
            html.add(format_args!("<li class=\"soft\">… and {left_out} more devices</li>\n"));
        }
        html.add(format_args!("</ul></td></tr>\n"));
    }

    fn add_settings(&self, html: &mut Html) {
        html.add(format_args!("<section>\n<h2>Settings</h2>\n<dl>\n"));
        for (name, value) in &self.status {
            html.add(format_args!("<dt>{}</dt><dd>{}</dd>\n", Text(name), Text(value)));
        }
        html.add(format_args!("</dl>\n</section>\n"));
    }
}

/// Starts a table whose last column is wide, or whose columns are alike.
fn start_table(html: &mut Html, class: &str, columns: &[&str]) {
    html.add(format_args!("<table class=\"{class}\">\n<thead><tr>"));
    for column in columns {
        html.add(format_args!("<th scope=\"col\">{column}</th>"));
    }
    html.add(format_args!("</tr></thead>\n<tbody>\n"));
}

/// Adds a list in a cell, and how many of `total` are left out.
fn add_list<T>(html: &mut Html, items: &[T], total: usize, item: impl Fn(&mut Html, &T)) {
    if items.is_empty() {
        return;
    }
    html.add(format_args!("<ul>"));
    for one in items {
        html.add(format_args!("<li>"));
        item(html, one);
        html.add(format_args!("</li>"));
    }
    let left_out = total - items.len();
    if left_out > 0 {
        html.add(format_args!("<li class=\"soft\">… and {left_out} more</li>"));
    }
    html.add(format_args!("</ul>"));
}

fn short_name(claim: &ClaimRef) -> String {
    format!("{}/{}", claim.namespace, claim.name)
}
