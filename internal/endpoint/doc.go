// Package endpoint holds what the look-aside server's front ends for HTTP requests share: how an OpenAI or gRPC
// request becomes a question for a replica, how a refusal becomes an HTTP status, and what a front end outside this
// module needs of the server.
package endpoint
