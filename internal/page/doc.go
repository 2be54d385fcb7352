// Package page is the look-aside server's page for people, and the components that reports are made of.
//
// # Rule
//
// The page shows the status that the command top reads, and what a request would be answered by ChooseReplica with
// PICK_MODE_QUERY. Go renders all of it. An event stream sends the live part again once a second where it differs, and
// the script changes the nodes that differ.
//
// # Guarantees
//
// The page needs no other host and no inline script or style: its content security policy refuses them. Text from
// configs, replicas and requests is escaped by html/template. A stream ends when its principal is removed or the server
// shuts down. What a principal may not read is not in its status, and so not on its page.
package page
