# The command, mostly for warmpath serve: docker build -t REGISTRY/warmpath .
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH
WORKDIR /src
COPY . .
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -ldflags=-s -o /warmpath ./cmd/warmpath

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /warmpath /warmpath
ENTRYPOINT ["/warmpath"]
