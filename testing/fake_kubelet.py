"""The kubelet's side of the device plugin API, on a real socket, as Kubernetes 1.37 has it."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from hami.plugin import api_pb2 as api

TIMEOUT_S = 60  # no test waits that long unless it fails


class Kubelet:
    """A kubelet process, which takes each endpoint once. *directory*: holds its socket and those of plugins."""

    def __init__(self, directory, *, refuses=""):
        self.directory = directory
        self.may_answer = threading.Event()
        """Registrations are answered once it is set."""
        self.may_answer.set()
        self.registered = queue.Queue()
        self.options = queue.Queue()
        self.lists = queue.Queue()
        self._refuses = refuses
        self._channels = []
        self._endpoints = set()
        self._server = grpc.server(
            ThreadPoolExecutor(4),
            handlers=[
                grpc.method_handlers_generic_handler(
                    "v1beta1.Registration",
                    {
                        "Register": grpc.unary_unary_rpc_method_handler(
                            self._register,
                            api.RegisterRequest.FromString,
                            lambda message: message.SerializeToString(),
                        )
                    },
                )
            ],
        )
        assert self._server.add_insecure_port(f"unix:{directory / 'kubelet.sock'}")
        self._server.start()

    def _register(self, request, context):
        if self._refuses:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, self._refuses)
        if request.endpoint in self._endpoints:
            context.abort(
                grpc.StatusCode.UNKNOWN, f"device plugin already connected: {request.endpoint}"
            )
        self._endpoints.add(request.endpoint)
        self.options.put(
            Caller(self.directory / request.endpoint).options()
        )  # before it answers, as a kubelet does
        self.may_answer.wait(TIMEOUT_S)
        self.registered.put(request)
        return api.Empty()

    def listen(self, name="nvidia-gpu.sock"):
        """Opens a stream; puts each list of devices, and ``None`` at the end, into ``lists``."""
        caller = Caller(self.directory / name)
        self._channels.append(caller)

        def read():
            try:
                for answer in caller.list_and_watch():
                    self.lists.put({device.ID: device.health for device in answer.devices})
            except grpc.RpcError:
                pass
            self.lists.put(None)

        threading.Thread(target=read, daemon=True).start()

    def next_list(self):
        """The next list, or ``None`` for the end of one."""
        return self.lists.get(timeout=TIMEOUT_S)

    def disconnect(self):
        """Close the streams."""
        for caller in self._channels:
            caller.close()

    def stop(self):
        """Stops like a killed kubelet: its socket stays."""
        self.may_answer.set()
        self.disconnect()
        self._server.stop(0).wait()


class Caller:
    """Calls one plugin."""

    def __init__(self, path):
        self._channel = grpc.insecure_channel(
            f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)]
        )

    def _call(self, method, request, answer):
        call = self._channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}", type(request).SerializeToString, answer.FromString
        )
        return call(request, timeout=TIMEOUT_S)

    def options(self):
        return self._call("GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions)

    def list_and_watch(self):
        return self._channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            api.Empty.SerializeToString,
            api.ListAndWatchResponse.FromString,
        )(api.Empty())

    def allocate(self, *containers):
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        )
        return self._call("Allocate", request, api.AllocateResponse)

    def prefer(self, available, must_include, size):
        one = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
        )
        answer = self._call(
            "GetPreferredAllocation",
            api.PreferredAllocationRequest(container_requests=[one]),
            api.PreferredAllocationResponse,
        )
        return [list(one.deviceIDs) for one in answer.container_responses]

    def pre_start(self, ids):
        return self._call(
            "PreStartContainer",
            api.PreStartContainerRequest(devices_ids=ids),
            api.PreStartContainerResponse,
        )

    def close(self):
        self._channel.close()


@contextmanager
def calling(path):
    """A caller of the plugin at *path*."""
    caller = Caller(path)
    try:
        yield caller
    finally:
        caller.close()
