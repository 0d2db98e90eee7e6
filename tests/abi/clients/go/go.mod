module quire.dev/go/client

go 1.24

require quire.dev/go v0.0.0

replace quire.dev/go => ../../../../bindings/go
