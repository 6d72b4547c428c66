# docker build -t vergence .
# docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/data" vergence check IMAGES --out checked
# torch without CUDA, and the small network for check. What only compilers, tests and debuggers need is removed: about half of the size.
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends binutils git && pip install --no-cache-dir uv
COPY . /source
RUN uv venv /opt/vergence && uv pip install --python /opt/vergence/bin/python --no-cache --torch-backend cpu '/source[eyes]'
WORKDIR /opt/vergence
RUN find . -type d \( -name __pycache__ -o -name tests -o -name test \) -prune -exec rm -rf {} + \
 && find lib/*/site-packages/torch/bin -type f ! -name torch_shm_manager -delete \
 && rm -rf lib/*/site-packages/torch/include lib/*/site-packages/pyarrow/include lib/*/site-packages/pyarrow/*flight* \
 && strip --strip-unneeded lib/*/site-packages/torch/lib/libtorch_cpu.so lib/*/site-packages/torch/lib/libtorch_python.so

FROM python:3.13-slim
COPY --from=build /opt/vergence /opt/vergence
ENV PATH=/opt/vergence/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1
USER 1000
WORKDIR /data
RUN vergence doctor
ENTRYPOINT ["vergence"]
CMD ["doctor"]
