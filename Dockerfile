# The command alone. docs/kubernetes.md has the commands that build it and the image.
FROM scratch
COPY warmpath /warmpath
USER 65532:65532
ENTRYPOINT ["/warmpath"]
